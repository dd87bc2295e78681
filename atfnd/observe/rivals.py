# SPDX-License-Identifier: GPL-2.0-or-later
"""Other daemons that move interrupts, channels or threads. Reads only.

/proc/PID/comm and cmdline (proc(5)), /etc/tuned/active_profile, and what irqbalance itself says of
the interrupts it leaves alone, on its socket (irqbalance(1), "Socket API").
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.irqbalance import spared
from atfnd.model import Rival

__all__ = ["NAMES", "rivals"]

NAMES = ("irqbalance", "numad", "tuned")

_GONE = (FileNotFoundError, ProcessLookupError)


def rivals(root: Path = Path("/")) -> tuple[Rival, ...]:
    """Those that run now, by name and process; a process that ends under our hands is none."""
    found = []
    for pid, name in _running(root / "proc"):
        banned, answers = frozenset[int](), True
        if name == "irqbalance":
            told = spared(pid, root / "run")
            answers = told is not None
            banned = _banned_by_option(root / "proc", pid) if told is None else told
        profile = _profile(root) if name == "tuned" else None
        found.append(Rival(name, pid, banned, profile, answers))
    return tuple(sorted(found, key=lambda rival: (rival.name, rival.pid)))


def _running(proc: Path) -> Iterator[tuple[int, str]]:
    for entry in os.listdir(proc):
        if entry.isdigit():
            with suppress(*_GONE):
                name = (proc / entry / "comm").read_text(errors="replace").rstrip("\n")
                if name in NAMES:
                    yield int(entry), name


def _banned_by_option(proc: Path, pid: int) -> frozenset[int]:
    """`--banirq=N`, `--banirq N`, `-i N`, `-iN`: each may come many times."""
    with suppress(*_GONE):
        words = (proc / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ")
        return frozenset(map(int, re.findall(r"(?<!\S)(?:--banirq[= ]|-i ?)(\d+)(?!\S)", words)))
    return frozenset()


def _profile(root: Path) -> str | None:
    with suppress(FileNotFoundError):
        return (root / "etc/tuned/active_profile").read_text().strip() or None
    return None
