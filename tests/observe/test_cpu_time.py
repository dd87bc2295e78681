# SPDX-License-Identifier: GPL-2.0-or-later
"""CPU time, from a made-up /proc and from the real one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from atfnd.observe.processes.cpu_time import cpu_time
from tests.wait import until

__all__: list[str] = []

TICK_NS = 10**9 // os.sysconf("SC_CLK_TCK")
STAT = """\
cpu  100 200 300 4000 500 600 700 800 90 0
cpu0 1 2 3 1000 50 4 5 800 1 0
cpu2 10 20 30 3000 450 40 50 0 9 0
intr 12345 1 2 3
ctxt 99
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "stat").write_text(STAT)
    for pid, tid, ran in ((5, 5, 100), (5, 6, 2_000_000_000_000)):
        folder = tmp_path / str(pid) / "task" / str(tid)
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(f"{ran} 7 8\n")
    return tmp_path


def test_a_cpu_is_busy_but_for_idle_and_stolen_time(proc: Path) -> None:
    now = cpu_time([], str(proc))
    assert now.busy_ns == {0: 15 * TICK_NS, 2: 150 * TICK_NS}  # CPU 1 is offline
    assert now.softirq_ns == {0: 5 * TICK_NS, 2: 50 * TICK_NS}


def test_what_the_kernel_does_not_tell_of_a_thread_is_missing(proc: Path) -> None:
    now = cpu_time([(5, 5), (5, 6), (5, 7), (8, 8)], str(proc))
    assert now.ran_ns == {5: 100, 6: 2_000_000_000_000}
    assert now.waited_ns == {5: 7, 6: 7}
    for path in proc.glob("5/task/*/schedstat"):
        path.unlink()
    now = cpu_time([(5, 5), (5, 6)], str(proc))
    assert (now.ran_ns, now.waited_ns) == ({}, {})


@pytest.mark.usefixtures("own_affinity")
def test_who_is_ready_and_has_no_cpu_waits() -> None:
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpu})
    me = (os.getpid(), threading.get_native_id())
    spins = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spins]) as rival:
        try:
            first = cpu_time([me])

            def waited() -> bool:
                sum(range(100_000))
                now = cpu_time([me])
                times = (now.waited_ns, first.waited_ns), (now.ran_ns, first.ran_ns)
                return all(since[me[1]] - before[me[1]] > 20_000_000 for since, before in times)

            until(waited, "to run for 20 ms and to wait for as long")
            assert os.sched_getaffinity(0) <= first.busy_ns.keys() == first.softirq_ns.keys()
        finally:
            rival.kill()
