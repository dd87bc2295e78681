# SPDX-License-Identifier: GPL-2.0-or-later
"""What `explain` says of a thread that the scheduler may take to another CPU."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from atfnd.daemon.reporter import not_pinned
from atfnd.model import Thread
from tests.values import flow

__all__: list[str] = []


def used_by(tid: int) -> Thread:
    return Thread(tid=tid, pid=tid, comm="app", cgroup=None)


@pytest.mark.usefixtures("own_affinity")
def test_a_thread_is_pinned_if_it_may_run_on_one_cpu() -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    mine = flow(1, thread=used_by(os.getpid()))
    os.sched_setaffinity(0, {first})
    assert not_pinned(mine) is None
    os.sched_setaffinity(0, {first, second})
    assert "may run on 2 CPUs" in (not_pinned(mine) or "")
    assert not_pinned(mine._replace(left="it wanders")) is None  # that says more


def test_nothing_is_said_of_a_thread_that_is_gone_or_not_known() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    assert not_pinned(flow(1, thread=used_by(ended.pid))) is None
    assert not_pinned(flow(1, thread=None)) is None
