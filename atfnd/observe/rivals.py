# SPDX-License-Identifier: GPL-2.0-or-later
"""Other daemons that move interrupts, channels or threads. Reads only.

/proc/PID/comm and cmdline (proc(5)), /etc/tuned/active_profile, and what irqbalance itself says of
the interrupts it leaves alone, on its socket (irqbalance(1), "Socket API").
"""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from atfnd.model import Rival

__all__ = ["NAMES", "banned_irqs", "rivals"]

NAMES = ("irqbalance", "numad", "tuned")
ANSWER_BYTES = 8192  # what irqbalance's own user interface reads
ANSWER_S = 2.0  # it answers between two looks at the interrupts

_GONE = (FileNotFoundError, ProcessLookupError)
_credentials = struct.Struct("=iII")


def rivals(root: Path = Path("/")) -> tuple[Rival, ...]:
    """Those that run now, by name and process; a process that ends under our hands is none."""
    found = []
    for pid, name in _running(root / "proc"):
        banned = frozenset[int]()
        if name == "irqbalance":
            told = banned_irqs(pid, root / "run")
            banned = _banned_by_option(root / "proc", pid) if told is None else told
        profile = _profile(root) if name == "tuned" else None
        found.append(Rival(name, pid, banned, profile))
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


def banned_irqs(pid: int, run: Path = Path("/run")) -> frozenset[int] | None:
    """What irqbalance answers to `setup`: `SLEEP s IRQ n LOAD l DIFF d CLASS c ... BANNED cpus`,
    with an `IRQ n` for each it was told to leave alone, by its options or since. It wants to be
    asked by root, with SCM_CREDENTIALS. None when it does not answer: it may be starting, or built
    without."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as asking:
        asking.settimeout(ANSWER_S)
        who = _credentials.pack(os.getpid(), os.getuid(), os.getgid())
        try:
            asking.connect(_socket_of(pid, run))
            asking.sendmsg([b"setup"], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, who)])
            answer = asking.recv(ANSWER_BYTES).decode(errors="replace")
        except OSError:  # no such socket, nobody listens, no answer in time
            return None
    return frozenset(map(int, re.findall(r"\bIRQ (\d+) LOAD", answer)))


def _socket_of(pid: int, run: Path) -> str:
    """A file where it can make one, else an abstract address."""
    name = f"irqbalance{pid}.sock"
    path = run / "irqbalance" / name
    return str(path) if path.exists() else f"\0{name}"


def _profile(root: Path) -> str | None:
    with suppress(FileNotFoundError):
        return (root / "etc/tuned/active_profile").read_text().strip() or None
    return None
