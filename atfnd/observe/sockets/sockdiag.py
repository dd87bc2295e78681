# SPDX-License-Identifier: GPL-2.0-or-later
"""The observer for kernels without usable BPF: sock_diag dumps and /proc, by polling.

Reads sock_diag(7) (`kernel.netlink.inet_diag`) and /proc (`observe.processes.threads`);
changes nothing.

A socket is *used* when the bytes its application has read and written grew between two polls. UDP
has no such counters: an old enough UDP socket is used whenever a thread of its holder runs, and
`min_bytes` cannot be asked of it. The core is that of the holder's threads that ran since the last
poll, if they all ran on one; else it is unknown which of them used the socket, and none is named
(`ambiguous` counts that).
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atfnd.kernel.netlink.inet_diag import (
    NOT_SAID,
    Namespace,
    SocketRecord,
    flow_keys,
    flows,
    records,
)
from atfnd.model import FlowKey, SocketGone, SocketSeen, SocketUse, Survey, Thread
from atfnd.observe import Observation, Qualify
from atfnd.observe.processes.threads import SocketOwners, ThreadSample, ThreadUse

__all__ = ["SockDiagObserver"]

# Share of one core a poll may cost: the interval grows until it does not, up to the longest.
_SHARE_USED = 0.02
_SHARE_IDLE = 0.002
_LONGEST_S = 5.0
# A timer that fires a hair early must not cost a whole interval.
_NOWHERE = -1  # no thread runs there
_EARLY = 0.9


@dataclass(slots=True)
class _Use:
    """A qualified socket that was used: where, and since when."""

    keys: tuple[FlowKey, ...]
    inode: int
    bytes: int
    cpu: int | None = None
    since_ns: int = 0
    reported: int | None = None
    used_ns: int = 0


class SockDiagObserver:
    """Implements `atfnd.observe.Observer`. Per socket: about 100 bytes in C, a `_Use` once used."""

    name = "sock_diag"

    def __init__(self, qualify: Qualify, poll_s: float = 0.1, proc: str = "/proc") -> None:
        self._qualify = qualify
        self._poll_s = self._interval_s = poll_s
        self._due_ns = 0
        self._owners = SocketOwners(proc)
        self._threads = ThreadUse(proc)
        self._watched: dict[Namespace, dict[int, _Use]] = {}
        self._lost_before = 0
        self._reported = 0
        self._listening = False
        self._epoll = select.epoll()
        self.ambiguous = 0

    def qualify(self, qualify: Qualify) -> None:
        self._qualify = qualify

    def fileno(self) -> int:
        """Readable when a socket of a watched namespace ended, while any is reported."""
        return self._epoll.fileno()

    def poll_interval_s(self) -> float:
        """At least `poll_s`; longer when a poll costs more than its share, 5 s at most."""
        return self._interval_s

    def watch(self, netns: Sequence[str | None], napis: Mapping[int, str]) -> int:
        """See `Observer.watch`; NAPIs cannot be seen here. OSError: no such namespace."""
        del napis
        kept = {each.path: each for each in self._watched if each.path in netns}
        opened: dict[str | None, Namespace] = {}
        try:
            for path in netns:
                if path not in kept and path not in opened:
                    opened[path] = Namespace(path)
        except OSError:
            for each in opened.values():
                each.close()
            raise
        self._listen(False)
        for each in set(self._watched) - set(kept.values()):
            self._leave(each)
        self._watched.update((each, {}) for each in opened.values())
        self._listen(self._reported > 0)
        self._due_ns = 0
        self._interval_s = self._poll_s
        return 0

    def drain(self) -> list[Observation]:
        """Ends of sockets at once; a poll, if one is due, for everything else."""
        events: list[Observation] = []
        now = time.monotonic_ns()
        for each, uses in self._watched.items():
            for record in records(each.destroyed.drain()):
                self._end(uses, record.cookie, now, events)
        if now >= self._due_ns:
            self._poll(now, events)
        self._listen(self._reported > 0)
        return events

    def lost(self) -> int:
        """Ends of sockets the kernel dropped; the next polls find those sockets missing anyway."""
        return self._lost_before + sum(each.destroyed.lost() for each in self._watched)

    def inventory(self) -> list[SocketUse]:
        """Every socket that a flow may belong to, unconnected UDP too; `app_cpu` where it is known
        already."""
        found: list[SocketUse] = []
        new = tuple.__new__
        for each, uses in self._watched.items():
            known = {cookie: use.cpu for cookie, use in uses.items()}
            for dump in each.dumps:
                found += [
                    new(
                        SocketUse,
                        (cookie, key, known.get(cookie), None, None, _count(count), None, None),
                    )
                    for cookie, key, count in flows(dump.dump())
                ]
        return found

    def adopt(self, cpus: Mapping[int, int]) -> None:
        """One dump, to learn the inodes of the sockets whose use is followed from now on."""
        for each, uses in self._watched.items():
            for dump in each.dumps:
                for record in records(dump.dump()):
                    cpu = cpus.get(record.cookie)
                    if cpu is not None and record.cookie not in uses:
                        count = _count(record.app_bytes)
                        at = _NOWHERE if self._qualify.elsewhere else cpu
                        uses[record.cookie] = _Use(
                            flow_keys(record), record.inode, count, cpu, 0, at, time.monotonic_ns()
                        )
                        self._reported += 1
        self._listen(self._reported > 0)

    def hands_on(self, nic: str, cpus: Mapping[int, int]) -> None:
        """Nothing: where packets arrive is not seen."""

    def expect(self, cookie: int, cpu: int, at_ns: int) -> None:
        """Nothing: where packets arrive is not seen."""

    def learn(self, cgroup: int, path: str, groups: int) -> None:
        """Nothing: here only thresholds are compared."""

    def forget(self, cookies: Collection[int]) -> None:
        for uses in self._watched.values():
            for cookie in cookies:
                use = uses.get(cookie)
                if use is not None and use.reported is not None:
                    use.reported = None
                    self._reported -= 1
        self._listen(self._reported > 0)

    def audit(self) -> list[SocketUse]:
        return [
            SocketUse(cookie, key, use.cpu, None, None, use.bytes, use.used_ns)
            for uses in self._watched.values()
            for cookie, use in uses.items()
            if use.reported is not None
            for key in use.keys
        ]

    def reads(self, nic: str) -> None:
        """Not measured: where the kernel processed what a socket reads is not in its dumps."""

    def begin_survey(self) -> bool:
        """Not for this observer, as `reads`."""
        return False

    def end_survey(self) -> Iterator[Callable[[], Survey]]:
        """None was begun."""
        return iter(())

    def close(self) -> None:
        for each in list(self._watched):
            self._leave(each)
        self._epoll.close()

    def _leave(self, each: Namespace) -> None:
        for use in self._watched.pop(each).values():
            self._owners.forget(use.inode)
            self._reported -= use.reported is not None
        self._lost_before += each.destroyed.lost()
        each.close()

    def _listen(self, wanted: bool) -> None:
        """Churn among sockets that were never reported must not wake the daemon."""
        if wanted == self._listening:
            return
        for each in self._watched:
            if wanted:
                self._epoll.register(each.destroyed, select.EPOLLIN)
            else:
                self._epoll.unregister(each.destroyed)
        self._listening = wanted

    def _poll(self, now: int, events: list[Observation]) -> None:
        began = time.thread_time_ns()
        min_bytes, min_age_ns = self._qualify.min_bytes, self._qualify.min_age_ns
        used = False
        self._threads.begin(now)
        for each, uses in self._watched.items():
            for dump in each.dumps:
                raw, gone = dump.changes(min_bytes, min_age_ns)
                for cookie in gone:
                    self._end(uses, cookie, now, events)
                for record in records(raw):
                    used |= self._observe(uses, record, now, events)
        used |= self._owners.step(now)
        cost_s = (time.thread_time_ns() - began) / 1e9
        share = _SHARE_USED if used else _SHARE_IDLE
        self._interval_s = max(self._poll_s, min(cost_s / share, _LONGEST_S))
        self._due_ns = now + int(self._interval_s * _EARLY * 1e9)

    def _observe(
        self, uses: dict[int, _Use], record: SocketRecord, now: int, events: list[Observation]
    ) -> bool:
        """One qualified socket that was (or, without counters, may have been) used; True if so."""
        counted = record.app_bytes != NOT_SAID
        use = uses.get(record.cookie)
        if use is None:
            use = uses[record.cookie] = _Use(flow_keys(record), record.inode, 0)
        use.bytes = _count(record.app_bytes)
        active = self._active(record.inode, now, counted)
        if not active:
            return counted
        use.used_ns = now
        cpus = {thread.cpu for _, thread in active}
        if len(cpus) > 1:
            self.ambiguous += 1
            use.cpu = None
            return True
        (cpu,) = cpus
        if use.cpu != cpu:
            use.cpu, use.since_ns = cpu, now
        if use.reported != cpu and now - use.since_ns >= self._qualify.dwell_ns:
            self._reported += use.reported is None
            use.reported = cpu
            thread = _thread(record, active)
            events.extend(
                SocketSeen(
                    now,
                    record.cookie,
                    key,
                    cpu,
                    thread,
                    None,
                    None,
                    use.bytes,
                    use.since_ns,
                    now - self._qualify.min_age_ns,  # at least that old
                )
                for key in use.keys
            )
        return True

    def _active(self, inode: int, now: int, used: bool) -> list[tuple[int, ThreadSample]]:
        """(pid, thread) of every holder's threads that ran since the last poll that asked."""
        pids = self._owners.of(inode, now) or ()
        asked = [(pid, self._threads.active(pid)) for pid in pids]
        active = [(pid, thread) for pid, threads in asked for thread in threads or ()]
        if used and pids and not active and all(threads is not None for _, threads in asked):
            self._owners.doubt(inode, now)
        return active

    def _end(self, uses: dict[int, _Use], cookie: int, now: int, events: list[Observation]) -> None:
        use = uses.pop(cookie, None)
        if use is None:
            return
        self._owners.forget(use.inode)
        if use.reported is not None:
            self._reported -= 1
            events.append(SocketGone(now, cookie))


def _count(said: int) -> int:
    """Bytes as `model` wants them: 0 for a socket without counters."""
    return 0 if said == NOT_SAID else said


def _thread(record: SocketRecord, active: list[tuple[int, ThreadSample]]) -> Thread:
    """Of several threads on one core the lowest tid stands for them all."""
    pid, thread = min(active, key=lambda each: each[1].tid)
    return Thread(thread.tid, pid, thread.comm, record.cgroup or None, record.uid)
