# SPDX-License-Identifier: GPL-2.0-or-later
"""Which observer this kernel supports, found by loading it."""

from __future__ import annotations

from atfnd.bpf import _bpf
from atfnd.errors import OperatorError
from atfnd.kernel.system.btf import kernel_has_btf
from atfnd.observe import Observer, Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from atfnd.observe.sockets.sockdiag import SockDiagObserver

__all__ = ["choose"]


def choose(wanted: str, qualify: Qualify) -> tuple[Observer, str]:
    """The observer and why it is this one. `wanted` is auto, bpf or sock_diag.

    OperatorError (exit 1) when `bpf` is asked for and the kernel refuses it.
    """
    if wanted == "sock_diag":
        return SockDiagObserver(qualify), "asked for"
    try:
        observer = BpfObserver(qualify)
    except OSError as refusal:
        why = _why(refusal)
        if wanted == "bpf":
            raise OperatorError(
                f"the BPF observer cannot run: {why}",
                "use --observer sock_diag, which needs no BPF",
                exit_code=1,
            ) from refusal
        return SockDiagObserver(qualify), f"no BPF: {why}"
    why = "asked for" if wanted == "bpf" else "the kernel supports it"
    if (refused := observer.ends_unseen) is not None:
        why += f"; but the end of a UDP socket is found by polling ({refused})"
    return observer, why


def _why(refusal: OSError) -> str:
    if not kernel_has_btf():
        return "this kernel has no BTF (CONFIG_DEBUG_INFO_BTF)"
    words = _bpf.libbpf_message().strip().splitlines()
    return f"{refusal.strerror}" + (f" ({words[-1]})" if words else "")
