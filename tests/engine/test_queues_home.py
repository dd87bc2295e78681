# SPDX-License-Identifier: GPL-2.0-or-later
"""Queues that followed an owner go home, never crowd a CPU, and change their CPU seldom.

Owners come, move, idle and end on two NICs of four queues and a machine of two CPUs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from atfnd.engine import audit
from atfnd.engine.ownership.follow import TERMS, arrived, followed
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import (
    Action,
    ActionKind,
    Migrant,
    Mode,
    NicView,
    Outcome,
    Plan,
    Queue,
    SocketUse,
    Thread,
)
from atfnd.move.plan import in_order
from tests.values import NIC, RULE, key, memory_of, one_rule, seen

__all__: list[str] = []

SECOND_NS = 1_000_000_000
CPUS = 2
ONLINE = frozenset(range(CPUS))
MOST = 3  # ceil(4 queues / 2 CPUs) + 1
STRICT = replace(RULE, order=Mode.STRICT)
QUIET_S = 12


def nic_named(name: str, first_napi: int) -> NicView:
    """Four queues, on CPUs 0, 1, 0 and 1."""
    queues = (Queue(i, first_napi + i, None, i % CPUS, True, 1000 + i) for i in range(4))
    return replace(NIC, name=name, queues=tuple(queues))


class Host:
    """NICs that do what is decided, sockets that are used, and the memory of who decides."""

    def __init__(self) -> None:
        self.memory = memory_of(FlowTable(256), one_rule(0, 10 * SECOND_NS, Mode.STRICT, OWNER))
        self.nics = {"nic": nic_named("nic", 100), "other": nic_named("other", 200)}
        self.now_ns = 100 * SECOND_NS
        self.homes = {name: cpus(nic) for name, nic in self.nics.items()}
        self.moved_ns: dict[tuple[str, int], list[int]] = {}
        self.sockets: dict[int, tuple[str, int, int]] = {}  # by flow: NIC, thread, CPU
        self.used_ns: dict[int, int] = {}  # by thread
        self.locations = 0
        self.puts_off = False

    def carry_out(self, plan: Plan) -> list[Action]:
        done = []
        for action in in_order(plan):
            arrived(action, self.memory)
            if action.queue is not None and self.puts_off:
                continue
            done.append(action)
            self.locations += 1
            location = self.locations if action.kind is ActionKind.INSERT else action.location
            if action.queue is not None and action.new is not None:
                nic = self.nics[action.nic]
                moved = (
                    replace(q, cpu=action.new) if q.index == action.queue else q for q in nic.queues
                )
                self.nics[action.nic] = replace(nic, queues=tuple(moved))
                self.moved_ns.setdefault((action.nic, action.queue), []).append(self.now_ns)
            audit.record(Outcome(action, self.now_ns, 0, location, ""), self.memory)
            if action.queue is not None and action.new is not None:
                followed(action.nic, action.queue, action.new, self.memory)
            self.check()
        return done

    def check(self) -> None:
        for nic in self.nics.values():
            assert max(Counter(cpus(nic).values()).values()) <= MOST

    def uses(self, number: int, tid: int, cpu: int, name: str = "nic") -> list[Action]:
        """A thread uses its socket on a CPU on which its packets do not arrive."""
        self.sockets[number] = name, tid, cpu
        self.used_ns[tid] = self.now_ns
        nic = self.nics[name]
        event = seen(
            number, cpu, rx_cpu=1 - cpu, napi_id=nic.queues[0].napi_id, off_since_ns=self.now_ns,
            thread=Thread(tid, tid, "app", None),
        )  # fmt: skip
        return self.carry_out(steer.seen(event, nic, STRICT, self.memory, self.now_ns))

    def closes(self, number: int) -> None:
        if self.sockets.pop(number, None) is not None:
            self.carry_out(retire.gone(1000 + number, self.memory))

    def ends(self, tid: int) -> None:
        for number in [n for n, (_, owner, _) in self.sockets.items() if owner == tid]:
            self.closes(number)

    def audits(self) -> None:
        uses = [
            SocketUse(1000 + n, key(n), cpu, None, None, 1 << 20, self.used_ns[tid])
            for n, (_, tid, cpu) in self.sockets.items()
        ]
        self.carry_out(audit.check_sockets(uses, self.nics, self.memory, self.now_ns))
        for name in self.nics:
            self.carry_out(steer.own(self.nics[name], ONLINE, self.memory, self.now_ns))

    def passes(self, wait_ns: int) -> None:
        """Time passes: what is due is done when it is; audits come every two seconds."""
        end_ns = self.now_ns + wait_ns
        while True:
            audit_ns = self.now_ns // (2 * SECOND_NS) * 2 * SECOND_NS + 2 * SECOND_NS
            due_ns = self.memory.next_due_ns()
            at_ns = audit_ns if due_ns is None else min(max(due_ns, self.now_ns), audit_ns)
            if at_ns > end_ns:
                break
            self.now_ns = at_ns
            self.carry_out(steer.due(self.nics, self.memory, at_ns))
            if at_ns == audit_ns:
                self.audits()
        self.now_ns = end_ns


OWNER = Migrant.THREAD


def cpus(nic: NicView) -> dict[int, int | None]:
    return {queue.index: queue.cpu for queue in nic.queues}


def away(host: Host) -> dict[str, dict[int, int | None]]:
    """Queues that are not on the CPU they had, and where."""
    return {
        name: {q: cpu for q, cpu in cpus(nic).items() if cpu != host.homes[name][q]}
        for name, nic in host.nics.items()
    }


def crowd(host: Host) -> None:
    """Threads that own a queue of CPU 1 each, and migrate to CPU 0."""
    for tid, cpu in enumerate((1, 1, 0, 0)):
        host.uses(tid, tid, cpu)
    host.passes(2 * SECOND_NS)
    for tid in range(4):
        host.uses(tid, tid, 0)


def test_a_queue_that_could_not_go_home_is_asked_for_again() -> None:
    host = Host()
    crowd(host)
    host.puts_off = True
    for tid in range(4):
        host.ends(tid)
    host.passes(10 * SECOND_NS)
    assert away(host)["nic"]
    host.puts_off = False
    host.passes(3 * SECOND_NS)
    assert away(host)["nic"] == {}


threads = st.integers(1, 9)
names = st.sampled_from(["nic", "other"])


class Owners(RuleBasedStateMachine):
    @initialize()
    def starts(self) -> None:
        self.host = Host()

    @rule(tid=threads, cpu=st.sampled_from(sorted(ONLINE)), name=names, socket=st.integers(0, 1))
    def uses(self, tid: int, cpu: int, name: str, socket: int) -> None:
        """One CPU at a time; a socket is on one NIC."""
        number = tid * 4 + socket * 2 + (name == "other")
        self.host.uses(number, tid, cpu, name)

    @rule(tid=threads)
    def ends(self, tid: int) -> None:
        self.host.ends(tid)

    @rule(wait_ms=st.sampled_from([1, 50, 400, 1000, 2500, 5000]))
    def passes(self, wait_ms: int) -> None:
        self.host.passes(wait_ms * 1_000_000)

    @rule(puts_off=st.booleans())
    def moves_are_put_off(self, puts_off: bool) -> None:
        self.host.puts_off = puts_off

    @precondition(lambda self: hasattr(self, "host"))
    @rule(ended=st.booleans())
    def is_quiet(self, ended: bool) -> None:
        """Owners idle, or have ended."""
        self.host.puts_off = False
        for tid in range(1, 10) if ended else ():
            self.host.ends(tid)
        self.host.passes(QUIET_S * SECOND_NS)
        assert away(self.host) == {"nic": {}, "other": {}}

    @invariant()
    def no_queue_flips(self) -> None:
        if not hasattr(self, "host"):
            return
        for times in self.host.moved_ns.values():
            gaps = [later - sooner for sooner, later in pairwise(times)]
            assert all(gap >= TERMS.rest_ns for gap in gaps)


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
