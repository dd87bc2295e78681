# SPDX-License-Identifier: GPL-2.0-or-later
"""The benches' machinery: children never outlive us, a signal ends in order, workloads deliver what
they say, reports say what was found."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from atfnd.errors import OperatorError
from bench.children import child
from tests.wait import until


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_child_ends_with_its_block_even_when_it_ignores_sigterm() -> None:
    with child("sh", "-c", "trap '' TERM; echo up; exec tail -f /dev/null") as stubborn:
        stubborn.said("up")
        stubborn.stop(deadline_s=0.1)
        assert gone(stubborn.pid)
    with pytest.raises(RuntimeError, match="boom"), child("tail", "-f", "/dev/null") as endless:
        raise RuntimeError("boom")
    assert gone(endless.pid)


def test_a_child_does_not_outlive_a_killed_parent() -> None:
    script = (
        "from bench.children import child\nimport signal\n"
        "with child('tail', '-f', '/dev/null') as c:\n print(c.pid, flush=True)\n signal.pause()"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        # the death signal is asked for by setpriv, between our fork and the command's start
        until(lambda: Path(f"/proc/{pid}/comm").read_text() == "tail\n", "the child has started")
        parent.kill()
    until(lambda: gone(pid), "the orphan is killed by the kernel")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_unwinds_and_a_second_one_does_not_interrupt_that(signum: int) -> None:
    script = (
        "import os, signal, sys\nfrom bench.ending import ended_in_order\n"
        "with ended_in_order():\n"
        "  try:\n    print('up', flush=True); signal.pause()\n"
        f"  finally:\n    os.kill(os.getpid(), {int(signum)}); print('undone', flush=True)"
    )
    running = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    with running:
        assert running.stdout is not None
        assert running.stdout.readline() == "up\n"
        running.send_signal(signum)
        assert running.stdout.read() == "undone\n"
    assert running.returncode == 128 + signum


def test_a_child_that_fails_is_one_clear_line() -> None:
    with (
        child("sh", "-c", "echo it said this first; echo no such thing >&2; exit 3") as failing,
        pytest.raises(OperatorError, match="exited with 3") as caught,
    ):
        failing.said("connected")
    assert "\n" not in caught.value.message
