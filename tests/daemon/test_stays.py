# SPDX-License-Identifier: GPL-2.0-or-later
"""What `explain` says of a thread that the scheduler may take to another CPU."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from atfnd.daemon.reporter import stays
from atfnd.model import Distance, Thread
from tests.values import flow

__all__: list[str] = []


def used_by(tid: int) -> Thread:
    return Thread(tid=tid, pid=tid, comm="app", cgroup=None)


NOW_NS = 10**10


def said(**changes: Any) -> str:
    mine = flow(1, thread=used_by(os.getpid()), app_cpu=1)._replace(**changes)
    return stays(mine, NOW_NS) or ""


@pytest.mark.usefixtures("own_affinity")
def test_it_says_whether_the_thread_is_pinned_settled_or_wanders() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, {first})
    assert "pinned to one CPU (by its affinity)" in said(pinned=True)
    os.sched_setaffinity(0, {first, second})
    assert "may run on 2 CPUs: it is followed once" in said()
    settled = said(pinned=False, home_ns=NOW_NS - 2_000_000_000)
    assert "may run on 2 CPUs and is settled on CPU 1 for 2.0 s: it is followed once" in settled
    assert "wanders within one last-level cache" in said(pinned=False, home=Distance.LLC)
    assert "wanders within one node" in said(pinned=False, home=Distance.NODE)
    assert said(pinned=False, home=Distance.MACHINE) == ""  # the reason says it


def test_nothing_is_said_of_a_thread_that_is_gone_or_not_known() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert stays(flow(1, thread=used_by(ended.pid)), NOW_NS) is None
    assert stays(flow(1, thread=None), NOW_NS) is None
