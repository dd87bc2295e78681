# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon shows, and the few orders it takes: HTTP and JSON over a Unix socket.

`Source` is what the daemon provides; `http.serve` publishes it. Reads nothing from the kernel.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Protocol

from atfnd.model import (
    Counts,
    CpuTime,
    Event,
    Finding,
    Flow,
    FlowKey,
    Gain,
    History,
    Measurement,
    MeasuringStep,
    NapiTime,
    NicView,
    Pairs,
    Planned,
    Policy,
    Restored,
    SocketFound,
    Status,
    Topology,
)

__all__ = ["Source"]


class Source(Protocol):
    """The daemon as the API sees it. A method that is no coroutine returns at once, and reads what
    the daemon already knows. Only `nics`, `sockets` and `cpu_time` ask the kernel."""

    def status(self) -> Status: ...

    def history(self) -> History:
        """The last hour of the little that is worth drawing, since the daemon's start."""

    def counts(self) -> Counts:
        """What is counted since the start."""

    def flows(self) -> Sequence[Flow | None]:
        """The Flow-to-Core table by slot, live. A flow keeps its slot for as long as it is in the
        table; None is a free slot. It is indexed and sliced a page at a time, so a page costs a
        page however big the table is (`engine.table.slots.FlowSlots` is such a sequence)."""

    def sockets(self) -> Iterator[SocketFound | None]:
        """The sockets that receive through its NICs and have no entry in the table; None is a step
        without one. The first step reads all sockets, unless that was done just now."""

    @property
    def audited_ns(self) -> int:
        """When the bytes of every flow were last read (CLOCK_MONOTONIC); 0 is never."""

    def names(self) -> Sequence[str]:
        """The interfaces it watches."""

    def nics(self) -> Sequence[NicView]:
        """With rules and counters: this may read the kernel, at a bounded cost."""

    def topology(self) -> Topology: ...

    def cpu_time(self) -> tuple[CpuTime, Sequence[NapiTime]]:
        """For every CPU, and for each NAPI thread. This may read the kernel, at a bounded cost."""

    def events(self, after_seq: int, limit: int) -> Sequence[Event]:
        """The oldest `limit` retained events with `seq > after_seq`, oldest first; 1 is the first
        seq after a start."""

    async def later_than(self, seq: int) -> None:
        """Return once an event is numbered above `seq`."""

    def rss_queue(self, nic: str, key: FlowKey) -> int | None:
        """The queue RSS gives this flow on that NIC (Toeplitz and indirection table); None when
        it depends on the remote, or the NIC did not say."""

    def remarks(self, flow: Flow) -> tuple[str, ...]:
        """Sentences on the application of a flow of the table: what `auto` has chosen, and by what
        measurement; whether it may not use CPUs that its policy dedicates."""

    def port_remarks(self, key: FlowKey) -> tuple[str, ...]:
        """Sentences on the listening port of a connection, which may have no entry: why no filter
        may bring all of its connections to one queue."""

    def left_by(self, key: FlowKey) -> str | None:
        """The policy rule that leaves this flow alone for every user, as `name` (file:line)."""

    async def arm(self, nic: str) -> None:
        """Let the daemon change this NIC. KeyError: no such NIC; OperatorError: it cannot be
        steered; OSError: the kernel refused."""

    async def disarm(self, nic: str | None) -> None:
        """Stop every change on this NIC, or on all, also on those to come; rules in place stay.
        Raises as `arm`."""

    async def pause(self, nic: str) -> None:
        """Remove our filters from this NIC and put back what we changed there, so that an admin can
        change its channels; nothing is changed until `resume`. Raises as `arm`."""

    async def resume(self, nic: str) -> None:
        """Put back what `pause` took out, if the NIC was armed then, and take back what another
        program has moved. Raises as `arm`."""

    def measure(
        self, nic: str, total_s: float, slot_s: float, settle_s: float, against: str | None
    ) -> AsyncGenerator[MeasuringStep | Measurement, None]:
        """Compare this NIC armed with the same NIC paused, or steered by the policy of the file
        `against`, in turns, without the first `settle_s` of each: steps, what is known after each
        pair, and last the result. Closing it ends it, and leaves NIC and policy as they were.
        Raises as `arm`, OperatorError also if the file is wrong, or if it ends early."""

    async def restore(self, nic: str) -> Sequence[Restored]:
        """Take out and put back all that we changed on this NIC, disarm it, and return the result
        for each change. Raises as `arm`."""

    @property
    def policy(self) -> Policy:
        """The policy in force."""

    async def plan(self, nic: str) -> Sequence[Planned]:
        """What would be done to this NIC now, in order, if it were armed; or what waits, if it is.
        KeyError: no such NIC; OSError: it has just gone."""

    def recording(self, seconds: float, most: int) -> AsyncGenerator[str, None]:
        """What decisions are based on, as lines of JSON: for so many seconds, and so many lines at
        most."""

    async def reload(self) -> Policy:
        """Read the policy again, and return the one in force. OperatorError: it is wrong, and
        nothing has changed."""

    async def doctor(self, nic: str | None) -> tuple[Sequence[NicView], Sequence[Finding]]:
        """What hinders steering on this NIC, or on every watched NIC and on the machine; and the
        NICs looked at. Each is opened, only read, and closed, watched or not. OperatorError: no
        such interface; OSError: the kernel refused."""

    async def pairs(self, nic: str | None, seconds: float) -> Pairs:
        """What is forwarded, to or from this NIC or all: counted for so many seconds."""

    def latest_pairs(self, nic: str | None) -> Pairs:
        """The same, of the last seconds in which it was counted because somebody wants it."""

    def want_pairs(self, seconds: float) -> None:
        """A reader wants it counted for so long from now."""

    async def gain(self, nic: str | None, seconds: float) -> Gain:
        """What arming this NIC, or any, would gain: by a look of so many seconds at what is read,
        or by the one that is being taken."""
