# SPDX-License-Identifier: GPL-2.0-or-later
"""How long the interrupt of a queue's NAPI stays off after a poll, as settings of a NIC.

`defer-hard-irqs:N` (so many empty polls), `gro-flush-timeout:N` and `irq-suspend-timeout:N` (ns) of
queue N's NAPI, by netlink napi-get and napi-set (6.13, Documentation/networking/napi.rst). On an
older kernel the first two without `:N`: they are of the whole interface
(/sys/class/net/X/napi_defer_hard_irqs and gro_flush_timeout). A newer kernel has these files, too,
and a write there goes to every NAPI (commit f15e3b3ddb9f): they are left alone where single NAPIs
have values.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import Napi
from atfnd.kernel.netlink.netdev import (
    NAPI_DEFER_HARD_IRQS,
    NAPI_GRO_FLUSH_TIMEOUT,
    NAPI_IRQ_SUSPEND_TIMEOUT,
)
from atfnd.model import Queue
from atfnd.model.reception import DEFER, OF_NAPI, SUSPEND, TIMEOUT

__all__ = ["NapiSettings"]

_ATTRIBUTES = {
    DEFER: NAPI_DEFER_HARD_IRQS,
    TIMEOUT: NAPI_GRO_FLUSH_TIMEOUT,
    SUSPEND: NAPI_IRQ_SUSPEND_TIMEOUT,
}
_FILES = {DEFER: "napi_defer_hard_irqs", TIMEOUT: "gro_flush_timeout"}


class NapiSettings:
    """Those of one interface. OSError(ENODEV): it is gone."""

    def __init__(self, interface: Interface, queues: Callable[[], Sequence[Queue]]) -> None:
        self._interface, self._queues = interface, queues

    def read(self) -> dict[str, str]:
        """All of one kind. None of single NAPIs while the link is down."""
        found = {
            f"{kind}:{index}": str(value)
            for index, napi in self._napis().items()
            for kind, value in _values(napi).items()
            if value is not None
        }
        if found or self._of_napis():
            return found
        values = {kind: self._interface.read(file) for kind, file in _FILES.items()}
        return {kind: value for kind, value in values.items() if value is not None}

    def one(self, name: str) -> str | None:
        """None: there is none of this name. OSError(ENETDOWN): not while the link is down."""
        value = self.read().get(name)
        if value is None and ":" in name and self._of_napis() and not self._interface.up():
            raise OSError(errno.ENETDOWN, f"no {name} while the link is down")
        return value

    def write(self, name: str, value: str) -> None:
        """KeyError: there is none of this name. OSError: refused; ERANGE, too large."""
        kind, _, index = name.partition(":")
        if not index:
            if self._of_napis() or kind not in _FILES:
                raise KeyError(name)
            try:
                self._interface.write(_FILES[kind], value)
            except FileNotFoundError:
                raise KeyError(name) from None
            return
        napi = self._napis().get(int(index)) if index.isdecimal() else None
        if napi is None or _values(napi).get(kind) is None or self._interface.netdev is None:
            raise KeyError(name)
        try:
            self._interface.netdev.set_deferral(napi.id, _ATTRIBUTES[kind], int(value))
        except OSError as refusal:
            if refusal.errno == errno.ENOENT:  # its NAPI went with the link
                raise OSError(errno.ENETDOWN, os.strerror(errno.ENETDOWN)) from None
            raise

    def _napis(self) -> dict[int, Napi]:
        """By queue, as far as it is known which NAPI serves which."""
        netdev = self._interface.netdev
        listed = None if netdev is None else netdev.napis(self._interface.ifindex)
        by_id = {napi.id: napi for napi in listed or ()}
        queues = self._queues() if by_id else ()
        return {q.index: by_id[q.napi_id] for q in queues if q.napi_id in by_id}

    def _of_napis(self) -> bool:
        """Single NAPIs have values."""
        return self._interface.netdev is not None and self._interface.netdev.sets_napis


def _values(napi: Napi) -> dict[str, int | None]:
    values = napi.defer_hard_irqs, napi.gro_flush_timeout_ns, napi.irq_suspend_timeout_ns
    return dict(zip(OF_NAPI, values, strict=True))
