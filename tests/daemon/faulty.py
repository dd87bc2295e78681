# SPDX-License-Identifier: GPL-2.0-or-later
"""Runs a Python program with a fault in it, which comes once, at one call in one state of a move.

    python -m tests.daemon.faulty LAB FAULT PHASE WHEN CALL PROGRAM [ARGUMENT...]

This is the fake: nothing is replaced, but before or after (WHEN) a CALL of the actuator, the
journal or the NIC, while a move is in PHASE, the program does FAULT to itself. It works in whatever
moves flows by `move.mover.Mover`. It says `fault` on stdout, a line of its own, where it lives on.
"""

from __future__ import annotations

import functools
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from typing import Any

from atfnd.move import device as machine
from atfnd.move.device import NicMoves
from atfnd.move.event import Event
from atfnd.move.transition import Phase
from atfnd.nic.lab.device import HOST_LINK
from atfnd.nic.lab.nic import LabNic
from atfnd.program.actuator import NicActuator
from atfnd.program.journals.filter_journal import FilterJournal
from tests.wait import until

__all__ = ["spinners", "with_fault"]

CALLS = {
    **dict.fromkeys(("hold", "write", "drain_evidence", "evidence", "release"), NicActuator),
    **dict.fromkeys(("claim", "locate"), FilterJournal),
    **dict.fromkeys(("insert", "delete"), LabNic),
}
Call = Callable[..., Any]

_labs: list[str] = []
_actuator: list[NicActuator] = []
_phases: set[Phase] = set()


def spinners(pid: int) -> list[int]:
    """The threads of a process that may keep a CPU: real-time ones beside the first."""
    threads = (int(each) for each in os.listdir(f"/proc/{pid}/task"))
    return [tid for tid in threads if tid != pid and os.sched_getscheduler(tid) == os.SCHED_FIFO]


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_spinner() -> None:
    """Which is a thread: the kernel kills all of them."""
    [tid] = spinners(os.getpid())
    os.kill(tid, signal.SIGKILL)


def stop() -> None:
    print("fault", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def demote() -> None:
    """The spinner loses its CPU: as when somebody with more authority takes it."""
    [tid], [actuator] = spinners(os.getpid()), _actuator
    held = [queue for queue in range(2) if actuator.in_force(queue)]
    os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))
    until(lambda: not any(actuator.in_force(queue) for queue in held), "what was held is polled")
    print("fault", flush=True)


def flap() -> None:
    """The NIC is reset: its link goes down and up."""
    for state in ("down", "up"):
        host = f"{_labs[0]}-host"
        subprocess.run(["ip", "-n", host, "link", "set", HOST_LINK, state], check=True)
    print("fault", flush=True)


def delete() -> None:
    """Another program deletes the filter of the flow that is moved, as `mover` names it."""
    local_port = int(sys.argv[6])
    with closing(LabNic(_labs[0])) as nic:
        [rule] = [
            each for each in nic.filters() if each.match and each.match.dst_port == local_port
        ]
        nic.delete(rule.location)
    print("fault", flush=True)


FAULTS = {each.__name__: each for each in (kill, kill_spinner, stop, demote, flap, delete)}


def with_fault(fault: str, lab: str) -> list[str]:
    """What goes before the command line of a Python program that steers this lab: `fault` are the
    four words of above."""
    return [sys.executable, "-m", "tests.daemon.faulty", lab, *fault.split()]


def _note_phases() -> None:
    step = machine.step

    def noted(device: NicMoves, event: Event, now_ns: int) -> machine.Stepped:
        stepped = step(device, event, now_ns)
        _phases.clear()
        _phases.update(move.phase for move in stepped[0].live.values())
        return stepped

    machine.step = noted


def _plant(fault: Callable[[], None], phase: Phase, when: str, name: str) -> None:
    owner = CALLS[name]
    real: Call = getattr(owner, name)

    def now(self: object) -> None:
        setattr(owner, name, real)
        if isinstance(self, NicActuator):
            _actuator.append(self)
        fault()

    @functools.wraps(real)
    def planted(self: object, *arguments: Any) -> Any:
        meant = phase in _phases
        if meant and when == "before":
            now(self)
        answer = real(self, *arguments)
        if meant and when == "after":
            now(self)
        return answer

    setattr(owner, name, planted)


def main(
    lab: str, fault: str, phase: str, when: str, call: str, program: str, *arguments: str
) -> None:
    _labs.append(lab)
    _note_phases()
    _plant(FAULTS[fault], Phase(phase), when, call)
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
