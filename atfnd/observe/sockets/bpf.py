# SPDX-License-Identifier: GPL-2.0-or-later
"""The BPF observer: tracepoints and socket storage in the kernel, one decode per wake-up here.

Reads the ring buffer and the iterators of atfnd/bpf/programs/observer.bpf.c. Nothing is kept per
socket in user space.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.kernel.system.cgroup import open_root
from atfnd.model import (
    Clause,
    Direction,
    Distance,
    FlowKey,
    ReadBytes,
    SocketGone,
    SocketSeen,
    SocketUse,
    Survey,
    SurveyedReads,
    Thread,
    ThreadReads,
)
from atfnd.observe import Observation, Qualify
from atfnd.observe.nics.reads import Slots
from atfnd.observe.sockets.clauses import ClauseMaps

__all__ = ["BpfObserver"]

_RECORD = layout("observer", "observer_record")
_DUE = layout("observer", "due").codec
_PARTS = layout("observer", "cpu_parts").codec
_NAPI = layout("observer", "watched_napi").codec
_PRICES = layout("observer", "stay_prices").codec
_SURVEY_KEY = layout("observer", "survey_key").codec
_SURVEY_COUNT = layout("observer", "survey_count").codec
_SEEN, _GONE, _READS = 1, 2, 4  # enum observer_kind
_DUAL_STACK, _ACCEPTED, _CONNECTED, _GROUP, _PINNED = 1, 4, 8, 16, 32  # enum observer_flag
_DIRECTIONS = {_ACCEPTED: Direction.ACCEPTED, _CONNECTED: Direction.CONNECTED}
_HOMES = Distance.CPU, Distance.LLC, Distance.NODE, Distance.MACHINE  # enum observer_level
_NO_CPU = 0xFFFFFFFF
_NOTHING = b"", b"", 0  # a survey that is read to its end
_NAPIS, _MARKED = 4096, 65536  # max_entries of `napis` and `marked`
_NICS = 1024  # OBSERVER_NICS
_CPUS = 4096  # OBSERVER_CPUS
_REPORT_AGAIN_NS = 1_000_000_000
_ANY4 = bytes(4)
# One object for all flows of a local end, of a thread.
_one = lru_cache(maxsize=1024)(lambda address, port: (address, port))
_thread = lru_cache(maxsize=4096)(Thread)  # one object for all flows of a thread

_Row = tuple[
    int, int, int, int, int, int, int, int, int, int, int, int, int,
    bytes, bytes, bytes, int, int, int, int, int, int, int,
]  # fmt: skip


def _keys(row: _Row) -> Iterator[FlowKey]:
    """The flows of one record's socket: two for an unconnected dual-stack socket, else one."""
    *_, local, remote, _, local_port, remote_port, family, protocol, flags, _, _ = row
    size = 4 if family == 4 else 16
    address, port = _one(local[:size], local_port)
    yield FlowKey(protocol, address, port, remote[:size], remote_port)
    if flags & _DUAL_STACK:
        yield FlowKey(protocol, _ANY4, local_port, _ANY4, 0)


def _text(comm: bytes) -> str:
    return comm.rstrip(b"\0").decode("utf-8", "replace")


def _cpu(value: int) -> int | None:
    return None if value == _NO_CPU else value


def _surveyed(nics: Mapping[int, str], keys: bytes, counts: bytes, missed: int) -> Survey:
    """Reads through a NIC that has gone meanwhile are missed."""
    rows = []
    found = zip(_SURVEY_KEY.iter_unpack(keys), _SURVEY_COUNT.iter_unpack(counts), strict=True)
    for (tid, slot, read_cpu, rx_cpu, left), count in found:
        total, calls, accepted, pid, allowed, port, comm = count
        if slot not in nics:
            missed += total
            continue
        rows.append(
            SurveyedReads(
                nics[slot],
                tid,
                pid,
                _text(comm),
                read_cpu,
                _cpu(rx_cpu),
                bool(left),
                total,
                calls,
                accepted,
                port or None,
                allowed,
            )
        )
    return Survey(tuple(rows), missed)


def _prices(qualify: Qualify) -> bytes:
    if qualify.price is None:
        return bytes(_PRICES.size)
    move_ns, packet_ns, trust, patience_ns, doubt = qualify.price
    levels = 1 + len(qualify.parts)
    return _PRICES.pack(move_ns, move_ns >> trust, patience_ns, *packet_ns, levels, doubt)


class BpfObserver:
    """`observe.Observer` on tracepoints. OSError when the kernel refuses a program."""

    name = "bpf"

    def __init__(self, qualify: Qualify, report_again_ns: int = _REPORT_AGAIN_NS) -> None:
        self._bpf, self._report_again_ns = _bpf.ObserverPrograms(), report_again_ns
        self._napi_map, self._due = self._bpf.map("napis"), self._bpf.map("due")
        self._parts = self._bpf.map("cpu_parts")
        self._clauses = ClauseMaps(self._bpf)
        self.qualify(qualify)
        self.ends_unseen = self._see_ends()  # why UDP ends are not reported; None: they are
        self._netns: tuple[str | None, ...] = ()
        self._nics: dict[int, tuple[str, int]] = {}  # of each watched NAPI, with its slot
        self._hands_on: dict[str, Mapping[int, int]] = {}  # by NIC
        self._napis: dict[int, tuple[int, int]] = {}  # as written into the map
        self._slots, self._watching = Slots(_NICS), 1
        self._reads: dict[str, tuple[int, ReadBytes]] = {}  # by NIC: slot, and what was in it

    def _see_ends(self) -> str | None:
        try:
            root = open_root()
        except OSError as refusal:
            return refusal.strerror
        try:
            self._bpf.see_ends(root)
        except OSError as refusal:
            return refusal.strerror
        finally:
            os.close(root)
        return None

    def qualify(self, qualify: Qualify) -> None:
        """Writes clauses to their map, the rest to the programs' mapped data: nothing is attached
        anew."""
        every = Clause(False, min_bytes=qualify.min_bytes, min_age_ns=qualify.min_age_ns)
        self._divide(qualify.parts)
        clauses = qualify.clauses or (every, Clause(True))
        self._bpf.configure(
            qualify.dwell_ns,
            self._report_again_ns,
            _prices(qualify),
            qualify.elsewhere,
            qualify.direction,
            any(clause.group is not None for clause in clauses),
            self._clauses.write(clauses),
        )

    def _divide(self, parts: Sequence[Mapping[int, int]]) -> None:
        """Write the map `cpu_parts`."""
        none: Mapping[int, int] = {}
        llc, node = (*parts, none, none)[:2]
        for cpu in {*llc, *node}:
            if cpu < _CPUS:
                value = _PARTS.pack(llc.get(cpu, 0), node.get(cpu, 0))
                _bpf.map_update(self._parts, cpu.to_bytes(4, "little"), value)

    def learn(self, cgroup: int, path: str, groups: int) -> None:
        """One write into the map `groups`."""
        self._clauses.learn(cgroup, path, groups)

    def fileno(self) -> int:
        """epoll descriptor of the ring buffer."""
        return self._bpf.fileno()

    def poll_interval_s(self) -> float | None:
        """None: the ring buffer wakes us."""
        return None

    def watch(self, netns: Sequence[str | None], napis: Mapping[int, str]) -> int:
        """Replace the watched NAPIs (kernel-wide unique ids), the first if not all fit."""
        self._netns = tuple(netns)
        slots = self._slots.assign(napis.values())
        for nic in self._reads.keys() - slots.keys():
            del self._reads[nic]
        for nic in slots.keys() - self._reads.keys():
            if slots[nic] != self._slots.none:
                self._reads[nic] = slots[nic], ReadBytes(*self._bpf.reads(slots[nic]))
        self._hands_on = {nic: each for nic, each in self._hands_on.items() if nic in slots}
        self._nics = {napi_id: (nic, slots[nic]) for napi_id, nic in islice(napis.items(), _NAPIS)}
        self._write_napis()
        return len(napis) - len(self._nics)

    def hands_on(self, nic: str, cpus: Mapping[int, int]) -> None:
        """Writes into the map `napis`, if these are watched."""
        self._hands_on[nic] = cpus
        self._write_napis()

    def _write_napis(self) -> None:
        none: Mapping[int, int] = {}
        wanted = {
            napi_id: (slot, self._hands_on.get(nic, none).get(napi_id, _NO_CPU))
            for napi_id, (nic, slot) in self._nics.items()
        }
        for napi_id in self._napis.keys() - wanted.keys():
            _bpf.map_delete(self._napi_map, napi_id.to_bytes(4, "little"))
        for napi_id, value in wanted.items() - self._napis.items():
            _bpf.map_update(self._napi_map, napi_id.to_bytes(4, "little"), _NAPI.pack(*value))
        if wanted != self._napis:
            self._watching += 1
            self._bpf.watching(self._watching)
        self._napis = wanted

    def drain(self) -> list[Observation]:
        """Decode what is in the ring buffer, oldest first; of a burst the first 512, and the
        descriptor stays readable."""
        observations: list[Observation] = []
        add = observations.append
        for row in _RECORD.codec.iter_unpack(self._bpf.drain()):
            at_ns, cookie, count, cgroup, off_ns, born_ns, kind, _, app, rx, napi, tid, pid, *_ = (
                row
            )
            if kind in (_SEEN, _READS):
                thread = _thread(tid, pid, _text(row[15]), cgroup or None, row[22])
            if kind == _READS:
                add(ThreadReads(at_ns, next(_keys(row)), napi, thread, app))
            elif kind == _SEEN:
                direction = _DIRECTIONS.get(row[20] & (_ACCEPTED | _CONNECTED))
                for key in _keys(row):
                    add(
                        SocketSeen(
                            at_ns,
                            cookie,
                            key,
                            app,
                            thread,
                            napi,
                            _cpu(rx),
                            count,
                            off_ns,
                            born_ns,
                            direction,
                            bool(row[20] & _GROUP),
                            _HOMES[row[21]],
                            bool(row[20] & _PINNED),
                        )
                    )
            elif kind == _GONE:
                add(SocketGone(at_ns, cookie))
        return observations

    def lost(self) -> int:
        """Records that found the ring buffer full. A lost SEEN is reported again by the next
        call."""
        return self._bpf.lost()

    def inventory(self) -> list[SocketUse]:
        """`iter/tcp` and `iter/udp` over the watched namespaces."""
        return [
            use
            for netns in self._netns
            for which in ("tcp", "udp")
            for use in self._uses(which, netns)
        ]

    def adopt(self, cpus: Mapping[int, int]) -> None:
        """Mark sockets as reported, by one walk of the socket iterators."""
        self._mark(cpus, self.inventory)

    def forget(self, cookies: Collection[int]) -> None:
        """Mark sockets as not reported, by one walk of the sockets that were."""
        self._mark(dict.fromkeys(cookies, _NO_CPU), self.audit)

    def expect(self, cookie: int, cpu: int, at_ns: int) -> None:
        """One write into the map `due`."""
        _bpf.map_update(self._due, cookie.to_bytes(8, "little"), _DUE.pack(at_ns, cpu))

    def _mark(self, cpus: Mapping[int, int], walk: Callable[[], object]) -> None:
        """The sockets that `walk` visits take their `reported_cpu` from the map `marked`, a mapful
        at a time."""
        marked, cookies = self._bpf.map("marked"), list(cpus)
        for first in range(0, len(cookies), _MARKED):
            some = cookies[first : first + _MARKED]
            for cookie in some:
                cpu = cpus[cookie].to_bytes(4, "little")
                _bpf.map_update(marked, cookie.to_bytes(8, "little"), cpu)
            walk()
            for cookie in some:
                _bpf.map_delete(marked, cookie.to_bytes(8, "little"))

    def audit(self) -> list[SocketUse]:
        """`iter/bpf_sk_storage_map`: visits only sockets with state, whatever their namespace. Or,
        where the kernel refuses that iterator: those of `inventory` that were reported."""
        if self._bpf.lists_reported():
            return list(self._uses("reported", None))
        return [use for use in self.inventory() if use.app_cpu is not None]

    def _uses(self, which: str, netns: str | None) -> Iterator[SocketUse]:
        descriptor = -1 if netns is None else os.open(netns, os.O_RDONLY | os.O_CLOEXEC)
        try:
            rows = self._bpf.sockets(which, descriptor)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        for row in _RECORD.codec.iter_unpack(rows):
            _, cookie, count, _, _, _, _, _, app, rx, napi, tid, *_ = row
            for key in _keys(row):
                yield SocketUse(cookie, key, _cpu(app), napi, _cpu(rx), count, tid=tid or None)

    def reads(self, nic: str) -> ReadBytes | None:
        """One read of a per-CPU map."""
        if nic not in self._reads:
            return None
        slot, before = self._reads[nic]
        return ReadBytes(*self._bpf.reads(slot)).since(before)

    def begin_survey(self) -> bool:
        """Sets a flag of the programs; what an earlier survey left is dropped."""
        for _ in iter(self._bpf.surveyed, _NOTHING):
            pass
        self._bpf.survey(True)
        return True

    def end_survey(self) -> Iterator[Callable[[], Survey]]:
        """Takes 512 entries of the map in a step."""
        self._bpf.survey(False)
        nics = {slot: nic for nic, (slot, _) in self._reads.items()}
        parts = iter(self._bpf.surveyed, _NOTHING)
        return (partial(_surveyed, nics, *part) for part in parts)

    def close(self) -> None:
        """Detach; the kernel frees the sockets' state with the map."""
        self._clauses.close()
        self._bpf.close()
