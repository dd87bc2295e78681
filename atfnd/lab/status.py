# SPDX-License-Identifier: GPL-2.0-or-later
"""How a lab stands: not there, up, or broken (and where). Reads namespaces, links, the device."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.system.netns import exists
from atfnd.lab.wiring import LINKS, check_request, namespaces
from atfnd.model import NicStats, Queue
from atfnd.nic.lab.nic import LabNic

__all__ = ["LabStatus", "lab_status"]


@dataclass(frozen=True, slots=True)
class LabStatus:
    """`state` is down (nothing there), up, or broken; then `problems` says what is wrong."""

    name: str
    state: str
    problems: tuple[str, ...]
    namespaces: tuple[str, ...]
    queues: tuple[Queue, ...] = ()
    stats: NicStats | None = None
    filters: int | None = None
    filter_slots: int | None = None
    ring_size: int | None = None
    interrupts: bool = False  # packets come by these, else from NAPI threads


def lab_status(name: str) -> LabStatus:
    """Changes nothing. OperatorError for an impossible name, and when not root."""
    check_request(name)
    paths = namespaces(name)
    there = tuple(path for path in paths.values() if os.path.lexists(path))
    if not there:
        return LabStatus(name, "down", (), ())
    problems = [
        f"namespace {path} is missing" for path in paths.values() if not exists(path)
    ] or _link_problems(paths)
    if problems:
        return LabStatus(name, "broken", tuple(problems), there)
    try:
        nic = LabNic(name)
    except OperatorError as error:
        return LabStatus(name, "broken", (f"no device: {error.message}",), there)
    try:
        return _opened(name, nic, there)
    finally:
        nic.close()


def _opened(name: str, nic: LabNic, there: tuple[str, ...]) -> LabStatus:
    queues = nic.queues()
    lazy = [q.index for q in queues if (q.napi_id if nic.interrupts else q.pid) is None]
    problems = tuple(f"queue {index} has no NAPI thread" for index in lazy)
    return LabStatus(
        name=name,
        state="broken" if problems else "up",
        problems=problems,
        namespaces=there,
        queues=queues,
        stats=nic.stats(),
        filters=len(nic.filters()),
        filter_slots=nic.caps().filter_slots,
        ring_size=nic.ring_size(),
        interrupts=nic.interrupts,
    )


def _link_problems(paths: dict[str, str]) -> list[str]:
    problems = []
    for role, name, *_ in LINKS:
        try:
            with closing(Interface(name, paths[role])) as link:
                if not link.up():
                    problems.append(f"{name} in {paths[role]} is down")
        except OSError as error:
            problems.append(f"{name} in {paths[role]}: {error.strerror}")
    return problems
