# SPDX-License-Identifier: GPL-2.0-or-later
"""Other daemons that move interrupts, channels or threads. Reads only.

Processes by psutil, what tuned's active profile does (`tuned`), and what irqbalance itself says of
the interrupts it leaves alone, on its socket (irqbalance(1), "Socket API").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from atfnd.kernel.interrupts.irqbalance import spared, spared_by_module
from atfnd.model import Rival
from atfnd.observe.machine.tuned import active_profile, moves_interrupts

__all__ = ["NAMES", "rivals"]

NAMES = ("bpftune", "irqbalance", "numad", "tuned")


def rivals(root: Path = Path("/")) -> tuple[Rival, ...]:
    """Those that run now, by name and process; a process that ends meanwhile is none. `root` is
    where /run and /etc are."""
    found = []
    for process, name in _running():
        pid, banned, answers = process.pid, frozenset[int](), True
        if name == "irqbalance":
            banned_now = spared(pid, root / "run")
            answers = banned_now is not None
            banned = _banned_by_option(process) if banned_now is None else banned_now
            banned |= spared_by_module(pid, root)
        profile, moves = _tuned(pid, root) if name == "tuned" else (None, None)
        found.append(Rival(name, pid, banned, profile, answers, moves))
    return tuple(sorted(found, key=lambda rival: (rival.name, rival.pid)))


def _running() -> Iterator[tuple[psutil.Process, str]]:
    """Not by psutil.process_iter(): it keeps every process of the machine in memory."""
    for pid in psutil.pids():
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if (name := process.name()) in NAMES:
                yield process, name


def _banned_by_option(process: psutil.Process) -> frozenset[int]:
    """`--banirq=N`, `--banirq N`, `-i N`, `-iN`: each may come many times."""
    with suppress(psutil.Error):
        words = " ".join(process.cmdline())
        return frozenset(map(int, re.findall(r"(?<!\S)(?:--banirq[= ]|-i ?)(\d+)(?!\S)", words)))
    return frozenset()


def _tuned(pid: int, root: Path) -> tuple[str | None, tuple[str, ...] | None]:
    """Its active profile, and what that does to interrupts. It may run in a container, with files
    of its own."""
    for at in (root / f"proc/{pid}/root", root):
        if profile := active_profile(at):
            return profile, moves_interrupts(profile, at)
    return None, None
