# SPDX-License-Identifier: GPL-2.0-or-later
"""Which threads use a socket, and where: the processes that hold an inode, their threads' CPUs.
Reads /proc.

/proc/PID/fd/* (proc(5): `socket:[inode]`), /proc/PID/task/TID/stat (comm, state, utime, stime,
processor: field 39) and schedstat (ns run, ns waited, timeslices; Documentation/scheduler/
sched-stats.rst). psutil's threads() takes twice as long (56 µs for 26) and has neither the CPU nor
the timeslices. A process that ends while we read is empty, not an error; one that we may not look
into (it has capabilities we lack) shows none of its sockets.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from atfnd.kernel.system.procfs import read, stat_fields

__all__ = [
    "SocketOwners",
    "ThreadSample",
    "ThreadUse",
    "ended_threads",
    "last_run",
    "read_threads",
    "sees_every_thread",
]

_SECOND_NS = 1_000_000_000
_INITIAL = 0xEFFFFFFC
_GONE = (FileNotFoundError, ProcessLookupError)


class ThreadSample(NamedTuple):
    """One thread at one moment."""

    tid: int
    comm: str
    cpu: int  # runs there, or ran there last
    running: bool
    ran: int  # grows whenever the thread runs: ns, or clock ticks without schedstat
    slices: int | None  # times it was given a CPU


def read_threads(pid: int, root: str = "/proc") -> dict[int, ThreadSample]:
    """Every thread of a process by tid; empty when it is gone. About 25 µs a thread."""
    folder = f"{root}/{pid}/task"
    threads = {}
    try:
        tids = os.listdir(folder)
    except _GONE:
        return {}
    for tid in tids:
        try:
            comm, fields = stat_fields(read(f"{folder}/{tid}/stat"))
        except _GONE:
            continue
        ran, slices = int(fields[11]) + int(fields[12]), None
        with suppress(*_GONE):  # a kernel without CONFIG_SCHED_INFO: ticks have to do
            schedstat = read(f"{folder}/{tid}/schedstat").split()
            ran, slices = int(schedstat[0]), int(schedstat[2])
        threads[int(tid)] = ThreadSample(
            int(tid), comm, int(fields[36]), fields[0] == "R", ran, slices
        )
    return threads


def last_run(tid: int, root: str = "/proc") -> tuple[int, ThreadSample] | None:
    """A thread, numbered as in the initial PID namespace, after the pid of its process. None: it
    has ended."""
    with suppress(*_GONE):
        status = read(f"{root}/{tid}/status")
        pid = next(int(line[5:]) for line in status.splitlines() if line.startswith("Tgid:"))
        comm, fields = stat_fields(read(f"{root}/{tid}/stat"))
        ran = int(fields[11]) + int(fields[12])
        return pid, ThreadSample(tid, comm, int(fields[36]), fields[0] == "R", ran, None)
    return None


def ended_threads(tids: Iterable[int], root: str = "/proc") -> set[int]:
    """Which of these threads, numbered as in the initial PID namespace, have ended."""
    return {tid for tid in tids if not os.path.exists(f"{root}/{tid}")}


def sees_every_thread(root: str = "/proc") -> bool:
    """This /proc numbers threads as the kernel does: it is of the initial PID namespace
    (PROC_PID_INIT_INO, include/linux/proc_ns.h)."""
    return os.stat(f"{root}/self/ns/pid").st_ino == _INITIAL


class ThreadUse:
    """Which threads of a process ran since it was last asked about, sampled once per poll."""

    # : a baseline older than this says nothing about now
    STALE_NS = 60 * _SECOND_NS

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._now_ns = 0
        self._samples: dict[int, tuple[int, dict[int, ThreadSample]]] = {}
        self._active: dict[int, tuple[ThreadSample, ...] | None] = {}

    def begin(self, now_ns: int) -> None:
        """A new poll: sample again, and forget processes that were not asked about for a minute."""
        self._now_ns = now_ns
        self._active.clear()
        oldest = now_ns - self.STALE_NS
        for pid in [pid for pid, (at, _) in self._samples.items() if at < oldest]:
            del self._samples[pid]

    def active(self, pid: int) -> tuple[ThreadSample, ...] | None:
        """Threads that ran since the last poll that asked; None when this is the first."""
        if pid not in self._active:
            now = read_threads(pid, self._root)
            before = self._samples.get(pid)
            if now:
                self._samples[pid] = (self._now_ns, now)
            self._active[pid] = None if before is None else _ran_since(before[1], now)
        return self._active[pid]


def _ran_since(
    before: dict[int, ThreadSample], now: dict[int, ThreadSample]
) -> tuple[ThreadSample, ...]:
    """The kernel adds a running thread's time at the tick, and a nohz_full CPU hardly ticks: a
    thread found running counts too."""
    return tuple(
        thread
        for tid, thread in now.items()
        if thread.running
        or tid not in before
        or (thread.ran, thread.slices) != (before[tid].ran, before[tid].slices)
    )


class SocketOwners:
    """Which processes hold a socket inode.

    The kernel has no such index, so every /proc/PID/fd is walked, in passes: a pass looks for all
    inodes asked for before it began and is complete, because a socket may have several holders.
    `step` bounds what a call costs (`links` readlinks, about 2 µs each); an inode is looked for at
    most once in `RETRY_NS`. No pass runs unless an unknown inode is asked for.
    """

    RETRY_NS = 10 * _SECOND_NS

    def __init__(self, root: str = "/proc", links: int = 2048) -> None:
        self._root = root
        self._links = links
        self._found: dict[int, tuple[int, tuple[int, ...]]] = {}  # inode: (looked at, pids)
        self._asked: set[int] = set()
        self._pass: Iterator[None] | None = None

    def of(self, inode: int, now_ns: int) -> tuple[int, ...] | None:
        """Holders' pids, () when a full pass found none; None when not known yet (try later)."""
        if (found := self._found.get(inode)) is None:
            self._asked.add(inode)
            return None
        looked_ns, pids = found
        if not pids and now_ns - looked_ns > self.RETRY_NS:
            self._asked.add(inode)
        return pids

    def doubt(self, inode: int, now_ns: int) -> None:
        """The socket is used while no holder runs: it may have been handed on, look again."""
        found = self._found.get(inode)
        if found is not None and now_ns - found[0] > self.RETRY_NS:
            self._asked.add(inode)

    def forget(self, inode: int) -> None:
        self._found.pop(inode, None)
        self._asked.discard(inode)

    def step(self, now_ns: int) -> bool:
        """Walk on, at most `links` descriptors; True while there is more to walk."""
        if self._pass is None and self._asked:
            self._pass = self._walk(frozenset(self._asked), now_ns)
        if self._pass is None:
            return False
        try:
            next(self._pass)
        except StopIteration:
            self._pass = None
        return self._pass is not None

    def _walk(self, wanted: frozenset[int], now_ns: int) -> Iterator[None]:
        holders: dict[int, list[int]] = {inode: [] for inode in wanted}
        links = {f"socket:[{inode}]": pids for inode, pids in holders.items()}
        read = 0
        for pid in [int(name) for name in os.listdir(self._root) if name.isdecimal()]:
            for link in self._sockets(pid):
                read += 1
                if read % self._links == 0:
                    yield
                if (pids := links.get(link)) is not None and pid not in pids:
                    pids.append(pid)
        for inode in wanted & self._asked:
            self._found[inode] = (now_ns, tuple(holders[inode]))
        self._asked -= wanted

    def _sockets(self, pid: int) -> Iterator[str]:
        """The links of a process's descriptors; ends early when the process does."""
        try:
            folder = os.open(f"{self._root}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for name in os.listdir(folder):
                    with suppress(*_GONE):
                        yield os.readlink(name, dir_fd=folder)
            finally:
                os.close(folder)
        except (*_GONE, PermissionError):  # ptrace(2), "Ptrace access mode checking"
            return
