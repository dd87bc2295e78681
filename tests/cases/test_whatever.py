# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever happens, in whatever order: no write moves a connection that it was not for, what is
shown is in the NIC, and queues go home."""

from __future__ import annotations

import errno
from collections import Counter, defaultdict
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd import model
from atfnd.engine import command as asked
from atfnd.engine import event as told
from atfnd.model.reason import Code
from tests.cases.given import PORT, STRICT, nic, policy, thread
from tests.cases.machine import Machine
from tests.values import key

SLOTS = 5
QUEUE_RESTS_NS = 100_000_000
LEFT = {"match": {"process": "left"}, "placement": "leave"}
PORTS = PORT, PORT._replace(local=bytes(4)), PORT._replace(local_port=80)


class Watched(Machine):
    """Fails when a write does what it was not for."""

    moves_ns: defaultdict[tuple[str, int], list[int]]
    births: set[model.FlowKey]

    def _begin(self, command: asked.Command, actions: model.Plan) -> None:
        if isinstance(command, asked.Begin):
            born = {each.action.key for each in command.wanted if each.first_data_ns is not None}
            self.births = {each for each in born if each is not None}
        super()._begin(command, actions)

    def _do(self, actions: model.Plan) -> None:  # type: ignore[override]
        for action in actions:
            before = self.delivered()
            super()._do([action])
            after = self.delivered()
            self.judge(action, {each for each in before if before[each] != after.get(each)})

    def judge(self, action: model.Action, moved: set[model.FlowKey]) -> None:
        if action.queue is not None:
            self.moves_ns[action.nic, action.queue].append(self.now_ns)
        elif action.key is None or not action.key.listens:
            assert moved <= {action.key}
        elif action.kind is model.ActionKind.DELETE or action.key in self.births:
            assert moved == set()  # a rewrite, and an insert that holds, prove what they move

    def delivered(self) -> dict[model.FlowKey, int]:
        return {each.key: self.nics[each.nic].delivers(each.key) for each in self.sockets.values()}

    def settled(self) -> None:
        """What is shown is what is there."""
        for name, its in self.nics.items():
            assert len(its.filters) <= its.slots
            for location, (of, queue) in its.filters.items():
                flow = self.flow(of)
                assert flow is not None
                assert (flow.nic, flow.location, flow.target_queue) == (name, location, queue)
        for each in self.sockets.values():
            flow = self.flow(each.key)
            if flow is not None and flow.state is model.FlowState.STEERED:
                assert flow.location in self.nics[each.nic].filters


def watched() -> Watched:
    made = Watched(policy(LEFT, STRICT), nic(slots=SLOTS), nic("two", slots=SLOTS))
    made.moves_ns, made.births = defaultdict(list), set()
    return made


VERBS = "use", "use", "close", "listen", "unlisten", "read", "fork", "wait", "answer", "load"
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 9), st.integers(0, 3)), max_size=40
)
THREADS = [thread(1), thread(2), thread(3, comm="left")]
ANSWERS = 0, 0, errno.EBUSY, Code.DATA_IN_FLIGHT()


def step(machine: Watched, verb: str, number: int, other: int) -> None:
    by = THREADS[number % 3]
    if verb == "use":
        local = PORTS[other % 3].local_port
        its = key(number)._replace(local_port=local if number % 2 else 443)
        known = machine.sockets.get(number)
        machine.uses(number, other, by=by, key=its if known is None else known.key)
    elif verb == "close" and number in machine.sockets:
        machine.closes(number)
    elif verb == "listen":
        port, alone = PORTS[number % 3], other % 2 == 0
        machine.listens(100 + number, other, key=port, alone=alone, thread=by)
    elif verb == "unlisten" and 100 + number in machine.listeners:
        machine.hears(model.SocketGone(machine.now_ns, 100 + number))
    elif verb == "read":
        machine.hears(model.ThreadReads(machine.now_ns, key(number), 101, by, other))
    elif verb == "fork":
        machine.hears(model.Forked(machine.now_ns, by.pid))
    elif verb == "answer":
        machine.answer = ANSWERS[other]
    elif verb == "load":
        machine.tell(told.LoadRead({cpu: 100 * (cpu == other) for cpu in range(4)}))
    elif verb == "wait":
        machine.later((0.001, 0.2, 5, 20)[other])


@settings(max_examples=60, deadline=None)
@given(STEPS)
def test_no_write_moves_a_connection_that_it_was_not_for(
    steps: list[tuple[str, int, int]],
) -> None:
    """Rows 30 to 39, and 53."""
    machine = watched()
    for verb, number, other in steps:
        step(machine, verb, number, other)
        machine.settled()


QUEUE_VERBS = st.sampled_from(["use", "use", "end", "wait", "answer"])
QUEUE_STEPS = st.lists(st.tuples(QUEUE_VERBS, st.integers(0, 7), st.integers(0, 3)), max_size=30)


@settings(max_examples=40, deadline=None)
@given(QUEUE_STEPS)
def test_queues_move_seldom_never_crowd_a_cpu_and_go_home(
    steps: list[tuple[str, int, int]],
) -> None:
    """Rows 9 to 12. Each thread uses a socket of one of two NICs."""
    machine = watched()
    for verb, number, other in steps:
        if verb == "use":
            machine.uses(number, other, number // 2, ("nic", "two")[number % 2])
        elif verb == "end" and number in machine.sockets:
            machine.closes(number)
        elif verb == "answer":
            machine.answer = (0, Code.QUEUE_GONE(3))[other % 2]
        else:
            machine.later((0.001, 0.05, 1, 5)[other])
        for name in machine.nics:
            on = Counter(machine.cpu(queue, name) for queue in range(4))
            assert max(on.values()) <= 2
    for times in machine.moves_ns.values():
        assert all(later - sooner >= QUEUE_RESTS_NS for sooner, later in pairwise(times))
    machine.answer = 0
    for number in [*machine.sockets]:
        machine.closes(number)
    machine.later(60)
    for name in machine.nics:
        assert [machine.cpu(queue, name) for queue in range(4)] == [0, 1, 2, 3]
