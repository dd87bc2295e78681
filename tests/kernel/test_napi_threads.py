# SPDX-License-Identifier: GPL-2.0-or-later
"""NAPI threads by their names, from a /proc of our own. (Real ones: test_ethtool_nic.py.)"""

from __future__ import annotations

from pathlib import Path

from atfnd.kernel.interrupts.napi_threads import PF_KTHREAD, napi_threads


def a_task(proc: Path, pid: int, comm: str, flags: int = PF_KTHREAD) -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({comm}) S 2 0 0 0 -1 {flags} 0 0")


def test_only_the_kernels_threads_of_this_name(tmp_path: Path) -> None:
    a_task(tmp_path, 10, "napi/eth0-8193")
    a_task(tmp_path, 11, "napi/eth0-8194", flags=0)  # a process may call itself anything
    a_task(tmp_path, 12, "napi/eth01-819")
    a_task(tmp_path, 13, "napi/eth0-8195 )")
    a_task(tmp_path, 14, "napi/enp65s0f0np0-8196")
    (tmp_path / "15").mkdir()  # it ends while we look
    (tmp_path / "self").mkdir()
    assert napi_threads("eth0", tmp_path) == {8193: 10}
    assert napi_threads("enp65s0f0np0", tmp_path) == {8196: 14}
    a_task(tmp_path, 16, "napi/ens1f0-8193"[:15])  # which may be cut
    assert napi_threads("ens1f0", tmp_path) == {}
