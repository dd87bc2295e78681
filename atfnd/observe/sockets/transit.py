# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows that move from queue A to queue B, as their sockets get them: packet by packet.

Reads what reaches sockets (an ingress program of the root cgroup, which lets everything pass) and
the ends of polls (napi:napi_poll) through atfnd/bpf/programs/transit.bpf.c, while attached; writes
nothing but its own maps. A violation is a packet delivered through A (or R, RSS's queue, where a
change passes through it) after the first through B; each is an event, or counted in `lost`. The
event decides: `end` may return counts that lack a packet delivered in the same instant, whose event
still comes. All times are CLOCK_MONOTONIC nanoseconds. Packets are counted as on the wire. A queue
is named by its NAPI id, a flow by its socket's cookie.
"""

from __future__ import annotations

import os
import socket
import sys
from enum import Enum
from typing import NamedTuple

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.kernel.system.cgroup import open_root
from atfnd.kernel.system.cpulist import online

__all__ = ["HOLDS", "HoldEnd", "HoldResult", "Late", "Passage", "PollEnd", "Transit"]

HOLDS = 2  # queues that can be quiesced at a time (TRANSIT_HOLDS)

_FLOW = layout("transit", "transit_flow")
_EVENT = layout("transit", "transit_event")
_NEW = 1  # BPF_NOEXIST
_DISCARD = "127.0.0.1", 9  # the port of RFC 863


class Passage(NamedTuple):
    """One flow since its move began."""

    move: int
    last_a_ns: int | None  # None: nothing through A
    first_b_ns: int | None
    last_b_ns: int | None
    a_packets: int
    b_packets: int
    late_packets: int  # through A, or R, after the first through B: violations
    elsewhere_packets: int  # through a third queue, R among them
    elsewhere_napi: int | None  # the last of them
    last_elsewhere_ns: int | None


class Late(NamedTuple):
    """A violation: these packets came through A, or R, after `first_b_ns`. `struct
    transit_event`, field by field."""

    at_ns: int
    first_b_ns: int
    move: int
    cookie: int
    napi_id: int
    packets: int


class HoldEnd(Enum):
    """What ended a hold (enum spinner_end)."""

    DRAINED = 1  # each A delivered all it held
    IDLE = 2  # the same; each was empty and asleep
    EXPIRED = 3  # the limit came first: if the rule was written, what A held may be late
    RELEASED = 4  # `resume` did


class PollEnd(NamedTuple):
    """The end of a poll (tracepoint napi:napi_poll)."""

    ended_ns: int
    work: int
    budget: int


class Proof(NamedTuple):
    """What a queue A did while B was held."""

    end: HoldEnd | None  # DRAINED or IDLE; None: it proved nothing
    at_ns: int  # when it was seen drained or asleep
    polls: tuple[PollEnd, PollEnd]  # DRAINED: the second poll began after the question


class HoldResult(NamedTuple):
    """How queue B was held, from `effective_ns` to `released_ns` unless `leaky`."""

    end: HoldEnd
    effective_ns: int
    released_ns: int
    marked_ns: int | None  # when the backlogs were read that had to deliver since
    leaky: bool  # B was polled meanwhile: busy polling, or a scheduler that let its thread run
    proofs: tuple[Proof, ...]  # of each A

    @property
    def unbroken(self) -> bool:
        """B was not polled until each A was drained, or until we released it."""
        return self.end is not HoldEnd.EXPIRED and not self.leaky


def _key(cookie: int) -> bytes:
    return cookie.to_bytes(8, sys.byteorder)


def _passage(value: bytes) -> Passage:
    seen = dict(zip(_FLOW.fields, _FLOW.codec.unpack(value), strict=True))
    return Passage(
        seen["move"],
        seen["last_a_ns"] or None,
        seen["first_b_ns"] or None,
        seen["last_b_ns"] or None,
        seen["a_packets"],
        seen["b_packets"],
        seen["late_packets"],
        seen["elsewhere_packets"],
        seen["elsewhere_napi"] or None,
        seen["last_elsewhere_ns"] or None,
    )


class Transit:
    """Watches at most `flows` flows and 16 queues. OSError: the kernel refuses the programs."""

    def __init__(self, flows: int = 1024) -> None:
        self._bpf, self._started = _bpf.TransitPrograms(flows), False

    def start(self) -> None:
        """Attach: from now on every packet that reaches a socket of the machine is looked at, and
        every poll. OSError: EALREADY, and as when the root cgroup has a program that tolerates no
        other."""
        root = open_root()
        try:
            self._bpf.start(root)
        finally:
            os.close(root)
        self._started = True

    def started(self) -> bool:
        """Attached now."""
        return self._started

    def stop(self) -> None:
        """Detach. What was seen stays; what happens now is not seen. OSError(EBUSY): a queue is
        quiesced."""
        self._bpf.stop()
        self._started = False

    def close(self) -> None:
        self._bpf.close()

    def fileno(self) -> int:
        """epoll descriptor: readable when there are events."""
        return self._bpf.fileno()

    def begin(self, cookie: int, move: int, napi_a: int, napi_b: int, napi_r: int = 0) -> None:
        """Watch a flow before its filter is written. Packets through R (0: there is none) count as
        late like packets through A. OSError: EEXIST (it is on the move already), E2BIG (too many
        are)."""
        given = dict.fromkeys(_FLOW.fields, 0) | {"move": move}
        given |= {"napi_a": napi_a, "napi_b": napi_b, "napi_r": napi_r}
        value = _FLOW.codec.pack(*(given[field] for field in _FLOW.fields))
        _bpf.map_update(self._bpf.map("flows"), _key(cookie), value, _NEW)

    def read(self, cookie: int) -> Passage | None:
        """None: it is not on the move."""
        value = _bpf.map_lookup(self._bpf.map("flows"), _key(cookie))
        return None if value is None else _passage(value)

    def end(self, cookie: int) -> Passage:
        """Stop watching it, and return what was seen. OSError(ENOENT)."""
        return _passage(_bpf.map_take(self._bpf.map("flows"), _key(cookie)))

    def drain(self) -> list[Late]:
        """The violations since the last call, oldest first."""
        return [Late(*row) for row in _EVENT.codec.iter_unpack(self._bpf.drain())]

    def lost(self) -> int:
        """Events that found the ring buffer full: as many may have been violations."""
        return self._bpf.lost()

    def watch(self, napi_id: int, tid: int | None) -> None:
        """See a queue's polls, and whether its NAPI thread (None: it has none) sleeps. OSError:
        ENOSPC (16 are watched), EEXIST (this one is)."""
        self._bpf.watch(napi_id, tid or 0)

    def unwatch(self, napi_id: int) -> None:
        """KeyError: it is not watched. OSError(EBUSY): it is quiesced, or drains for one that
        is."""
        self._bpf.unwatch(napi_id)

    def ask(self, napi_id: int, after_ns: int) -> None:
        """Ask when everything is delivered that is in this queue's ring at `after_ns` (now or
        later). One question at a time (a hold asks too); `answer` has the answer.
        None comes from an idle queue (`idle`), nor from one whose polls always take the whole
        budget. KeyError."""
        self._bpf.ask(napi_id, after_ns)

    def answer(self, napi_id: int) -> int | None:
        """When it was drained; None: not yet. KeyError."""
        return self._bpf.answer(napi_id)

    def polled(self, napi_id: int) -> tuple[int, int] | None:
        """When its last poll ended, and on which CPU; None: none since it is watched. KeyError."""
        return self._bpf.polled(napi_id)

    def served(self, napi_id: int) -> tuple[int, int]:
        """Packets taken by recent polls that followed each other without a pause, and the ns that
        these polls lasted. KeyError."""
        return self._bpf.served(napi_id)

    def idle(self, napi_id: int) -> bool:
        """Its ring is empty now and its NAPI thread asleep. Always False for a queue without a
        thread. KeyError."""
        return self._bpf.idle(napi_id)

    def know_backlogs(self) -> bool:
        """Find the backlog of each CPU that is online (`softnet_data`, net/core/dev.c): have each
        be polled once, by a datagram to nobody over the loopback device. It is started. False: some
        are not found."""
        unknown = [cpu for cpu in sorted(online()) if not self._bpf.backlog_known(cpu)]
        if not unknown:
            return True
        before = os.sched_getaffinity(0)
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nobody:
                for cpu in unknown:
                    os.sched_setaffinity(0, {cpu})
                    nobody.sendto(b"", _DISCARD)
        except OSError:  # no loopback device is up, or its CPU went offline
            pass
        finally:
            os.sched_setaffinity(0, before)
        return self.knows_backlogs()

    def knows_backlogs(self) -> bool:
        """The backlog of each CPU that is online was found."""
        return all(self._bpf.backlog_known(cpu) for cpu in sorted(online()))

    def mark_backlogs(self) -> None:
        """Note how many packets each known backlog has been given."""
        self._bpf.mark_backlogs()

    def backlogs_passed(self) -> bool:
        """The backlogs have delivered all that was noted."""
        return self._bpf.backlogs_passed()

    def quiesce(
        self,
        napis_a: tuple[int, ...],
        napi_b: int,
        cpu: int,
        priority: int,
        ready_ns: int,
        until_ns: int,
    ) -> int:
        """Keep `cpu` from B's NAPI thread with a SCHED_FIFO thread, until `resume`, and at most
        until `until_ns`. Waits until each A was seen to deliver, at most until `ready_ns`, and
        returns since when B is quiesced.

        Two queues that are quiesced (HOLDS) drain different ones. It is started (ValueError), all
        are watched (KeyError). OSError: EPERM (no SCHED_FIFO), EINVAL (no such CPU), ETIMEDOUT
        (others have the CPU), EAGAIN (an A stands still), EBUSY (B is quiesced, or as many are).
        `program.quiesce` knows when this is safe.
        """
        return self._bpf.quiesce(napis_a, napi_b, cpu, priority, ready_ns, until_ns)

    def quiesced(self, napi_b: int) -> bool:
        """B has been quiesced since `quiesce` returned, and is."""
        return self._bpf.quiesced(napi_b)

    def settle(self, napi_b: int, after_ns: int, *, hands_on: bool = False) -> None:
        """Let the hold of B end by itself, once each A has delivered all that is in its ring at
        `after_ns`, and with `hands_on` the backlogs of CPUs what A gave them. ValueError: none was
        begun."""
        self._bpf.settle(napi_b, after_ns, hands_on)

    def settled(self, napi_b: int, until_ns: int) -> bool:
        """Wait for its end; False: not before `until_ns`. ValueError."""
        return self._bpf.settled(napi_b, until_ns)

    def resume(self, napi_b: int) -> HoldResult:
        """End the hold of B, whether it has ended by itself or not. ValueError."""
        end, effective_ns, released_ns, marked_ns, b_polls, olds = self._bpf.resume(napi_b)
        proofs = tuple(
            Proof(HoldEnd(how) if how else None, at_ns, (PollEnd(*ends[:3]), PollEnd(*ends[3:])))
            for how, at_ns, *ends in olds
        )
        return HoldResult(
            HoldEnd(end), effective_ns, released_ns, marked_ns or None, b_polls > 0, proofs
        )
