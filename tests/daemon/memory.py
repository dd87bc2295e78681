# SPDX-License-Identifier: GPL-2.0-or-later
"""A memory control group of one's own, of either version (Documentation/admin-guide/cgroup-v1 and
cgroup-v2.rst), that runs out of memory on request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.wait import until

__all__ = ["Group", "a_memory_group"]

ROOT = Path("/sys/fs/cgroup")
V1 = ROOT / "memory"
# Takes one MiB for each line it reads.
_HOG = """
import sys
taken = []
for line in sys.stdin:
    taken.append(b"x" * (1 << 20))
    print("taken", flush=True)
"""
IN_GROUP = 'echo $$ >"$0/cgroup.procs" && exec "$@"'
FIRST = 'echo $$ >"$0/cgroup.procs" && echo 1000 >/proc/self/oom_score_adj && exec "$@"'


class Group:
    def __init__(self, path: Path, limit: str, events: str) -> None:
        self._path, self._limit, self._events = path, limit, events

    def wraps(self) -> list[str]:
        """What goes before a command line: it runs in the group and is what is killed first."""
        return ["sh", "-c", FIRST, str(self._path)]

    def kills(self) -> int:
        """Processes that the kernel killed because there was no more memory."""
        lines = (self._path / self._events).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def exhaust(self, limit_bytes: int) -> None:
        """Let there be so much memory, and use it up until somebody is killed."""
        (self._path / self._limit).write_text(str(limit_bytes))
        words = ["sh", "-c", IN_GROUP, str(self._path), sys.executable, "-c", _HOG]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as hog:
            try:
                assert hog.stdin is not None
                assert hog.stdout is not None
                while not self.kills():
                    hog.stdin.write("more\n")
                    assert hog.stdout.readline() == "taken\n"
            finally:
                hog.kill()


@contextmanager
def a_memory_group() -> Iterator[Group]:
    """Empty at the end, or it stays."""
    v1 = V1.is_dir()
    path = (V1 if v1 else ROOT) / f"atfnd-test-{os.getpid()}"
    if not v1:
        with suppress(OSError):  # it is so already
            (ROOT / "cgroup.subtree_control").write_text("+memory")
    path.mkdir()
    limit, events = ("memory.limit_in_bytes", "memory.oom_control") if v1 else ("memory.max", "")
    try:
        yield Group(path, limit, events or "memory.events")
    finally:
        procs = path / "cgroup.procs"
        until(lambda: not procs.read_text(), "nobody is in the group")
        path.rmdir()
