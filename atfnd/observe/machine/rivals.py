# SPDX-License-Identifier: GPL-2.0-or-later
"""Other daemons that move interrupts, channels or threads. Reads only.

Processes by psutil, /etc/tuned/active_profile, and what irqbalance itself says of the interrupts it
leaves alone, on its socket (irqbalance(1), "Socket API").
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from atfnd.kernel.interrupts.irqbalance import spared, spared_by_module
from atfnd.model import Rival

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
        profile = _profile(root) if name == "tuned" else None
        found.append(Rival(name, pid, banned, profile, answers))
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


def _profile(root: Path) -> str | None:
    with suppress(FileNotFoundError):
        return (root / "etc/tuned/active_profile").read_text().strip() or None
    return None
