# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever listens, connects, is steered and closed: no port's rule moves a live connection."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from atfnd.engine import audit
from atfnd.engine.filters import budget, port_filters
from atfnd.engine.filters.listeners import Listeners
from atfnd.model import (
    Accepted,
    ActionKind,
    FlowKey,
    FlowRule,
    FlowState,
    Listening,
    Outcome,
    Placement,
    SocketUse,
    Thread,
    ThreadReads,
)
from atfnd.move.event import Wanted
from tests.engine.test_birth import memory, owning
from tests.engine.test_port_filters import EXACT_WINS, PORT
from tests.values import RULE, flow, key

BUDGET = 4
KEYS = [PORT, PORT._replace(local=bytes(4)), PORT._replace(local_port=444)]
THREADS = [Thread(tid, tid, comm, None) for tid, comm in ((1, "app"), (2, "app"), (3, "left"))]


def steers(port: FlowKey, thread: Thread | None) -> FlowRule | None:
    del port
    comm = thread.comm if thread else None
    placement = Placement.LEAVE if comm == "left" else Placement.CORE
    return replace(RULE, name=str(comm), placement=placement)


class Ports(RuleBasedStateMachine):
    """Two ports, one of them with two addresses; a dozen remotes; deletes take their time."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = memory(capacity=12)
        self.listeners = Listeners()
        self.nic = replace(EXACT_WINS, budget=BUDGET)
        self.memory.nics["nic"].owned = owning({1: THREADS[0], 2: THREADS[1]})
        self.live: dict[FlowKey, int] = {}  # where RSS delivers it
        self.deletes: dict[FlowKey, Wanted] = {}
        self.now_ns, self.cookies = 1, 0

    def queue_of(self, connection: FlowKey) -> int:
        """As the NIC delivers it: an exact rule wins."""
        own = self.memory.table.get(connection)
        if own is not None and own.target_queue is not None:
            return own.target_queue
        port = self.memory.table.covering(connection)
        if port is not None and port.target_queue is not None:
            return port.target_queue
        return self.live[connection]

    def carry_out(self, birth: Wanted) -> None:
        before = {each: self.queue_of(each) for each in self.live}
        location = birth.action.location or hash(birth.action.key) % 4000
        audit.record(Outcome(birth.action, self.now_ns, 0, location, ""), self.memory)
        held = birth.action.kind is ActionKind.INSERT and birth.first_data_ns is None
        if (
            birth.action.kind is not ActionKind.REWRITE and not held
        ):  # those are proven, or deferred
            assert {each: self.queue_of(each) for each in self.live} == before

    @rule(
        key=st.sampled_from(KEYS), thread=st.sampled_from(THREADS), cpu=st.integers(0, 4),
        alone=st.booleans(),
    )  # fmt: skip
    def listen(self, key: FlowKey, thread: Thread, cpu: int, alone: bool) -> None:
        self.cookies += 1
        event = Listening(self.now_ns, self.cookies, key, 1, thread, cpu, alone)
        self.listeners.opened(event, self.memory.table)
        for birth in port_filters.wanted_again(event, self.listeners, self.memory):
            assert birth.action.key is not None
            self.deletes.pop(birth.action.key, None)
            self.carry_out(birth)

    @rule(data=st.data())
    @precondition(lambda self: self.listeners.sockets)
    def close(self, data: st.DataObject) -> None:
        sockets = [each for known in self.listeners.sockets.values() for each in known]
        assert self.listeners.closed(data.draw(st.sampled_from(sockets)), self.now_ns)

    @rule(data=st.data(), number=st.integers(0, 9), rss=st.integers(0, 3))
    @precondition(lambda self: self.listeners.sockets)
    def connect(self, data: st.DataObject, number: int, rss: int) -> None:
        port = data.draw(st.sampled_from([*self.listeners.sockets]))
        local = port.local if any(port.local) else KEYS[0].local
        remote = key(number)
        self.connects(
            FlowKey(port.protocol, local, port.local_port, remote.remote, remote.remote_port), rss
        )

    def connects(self, connection: FlowKey, rss: int) -> None:
        """What the daemon hears of it may put off the delete of its port's rule."""
        if connection in self.live:
            return
        self.live[connection] = rss
        event = Accepted(self.now_ns, 1, connection, 100 + self.queue_of(connection))
        for port in port_filters.exposed(event, self.nic, self.listeners, self.memory):
            birth = self.deletes.get(port)
            if birth is not None and birth.live:
                budget.ended(self.deletes.pop(port).action, self.memory)

    @rule(port=st.sampled_from(KEYS[::2]), thread=st.sampled_from(THREADS[:2]))
    def read(self, port: FlowKey, thread: Thread) -> None:
        """A thread reads a connection: two of them serve the port."""
        connection = port._replace(remote=key(0).remote, remote_port=1)
        self.listeners.read(ThreadReads(self.now_ns, connection, None, thread))

    @rule(data=st.data(), thread=st.sampled_from(THREADS), queue=st.integers(0, 3))
    @precondition(lambda self: self.live)
    def steer(self, data: st.DataObject, thread: Thread, queue: int) -> None:
        """A rule of its own, which the machine of the moves has written safely; or it waits."""
        key = data.draw(st.sampled_from([*self.live]))
        if (birth := self.deletes.pop(key, None)) is not None:
            budget.ended(birth.action, self.memory)  # the last that is wanted
        has_rule = data.draw(st.booleans())
        table = self.memory.table
        own = table.get(key)
        if (own is None and table.full()) or table.filters_in("nic") >= BUDGET:
            return
        if own is not None and own.location is not None and not has_rule:
            # It goes back to its port's rule while that one is about to go. The daemon does not see
            # the two together: `budget` does not know which ports' deletes `ports` has asked for.
            for port in [each for each in self.deletes if each.covers(key)]:
                budget.ended(self.deletes.pop(port).action, self.memory)
        table.put(
            flow(
                0, key=key, cookie=10_000 + hash(key) % 1000, thread=thread, app_cpu=queue,
                state=FlowState.STEERED if has_rule else FlowState.OVERFLOW, rule_name=thread.comm,
                target_queue=queue if has_rule else None, location=9 if has_rule else None,
            )
        )  # fmt: skip

    @rule(data=st.data())
    @precondition(lambda self: self.live)
    def disconnect(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from([*self.live]))
        del self.live[key]
        if (birth := self.deletes.pop(key, None)) is not None:
            budget.ended(birth.action, self.memory)
        if self.memory.table.get(key) is not None:
            self.memory.table.remove(key)

    @rule(step_ns=st.sampled_from([1, 5 * 10**9, 20 * 10**9]))
    def look(self, step_ns: int) -> None:
        self.now_ns += step_ns
        for birth in self.deletes.values():
            self.carry_out(birth)
        self.deletes.clear()
        uses = [SocketUse(1, key, None, 100 + self.queue_of(key), None, 0) for key in self.live]
        found = port_filters.look(self.nic, steers, self.listeners, uses, self.memory, self.now_ns)
        for birth in found:
            assert birth.action.rule_name != "left"
            if birth.action.kind is ActionKind.DELETE:
                assert birth.action.key is not None
                self.deletes[birth.action.key] = birth
            else:
                self.carry_out(birth)

    @rule(thread=st.sampled_from(THREADS))
    def fork(self, thread: Thread) -> None:
        self.listeners.forked(thread.pid)

    @rule(key=st.sampled_from(KEYS))
    def unwanted(self, key: FlowKey) -> None:
        """Another policy has no rule for its connections."""
        if self.memory.table.get(key) is not None:
            self.listeners.unwanted.add(key)

    @rule(key=st.sampled_from(KEYS))
    def wanted(self, key: FlowKey) -> None:
        self.listeners.unwanted.discard(key)

    @invariant()
    def it_keeps_within_its_share(self) -> None:
        table = self.memory.table
        assert len(table) <= table.capacity
        assert table.filters_in("nic") <= BUDGET

    @invariant()
    def who_listens_nowhere_is_forgotten_in_time(self) -> None:
        assert self.listeners.closed_ns.keys().isdisjoint(self.listeners.sockets)


TestPorts = Ports.TestCase


def test_the_rule_of_a_port_that_still_listens_goes_under_no_connection() -> None:
    """As hypothesis found it: the delete was under way when somebody connected."""
    ports = Ports()
    ports.listen(PORT, THREADS[0], 1, True)
    ports.look(1)
    assert ports.memory.table.get(PORT) is not None
    ports.unwanted(PORT)
    ports.look(1)
    assert ports.deletes.keys() == {PORT}
    remote = key(1)
    connection = PORT._replace(remote=remote.remote, remote_port=remote.remote_port)
    ports.connects(connection, 0)
    ports.look(1)
    assert ports.queue_of(connection) == 1
    del ports.live[connection]
    ports.look(5 * 10**9)
    ports.look(1)
    assert ports.memory.table.get(PORT) is None
