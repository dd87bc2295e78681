# SPDX-License-Identifier: GPL-2.0-or-later
"""Which means a NIC is steered by and why, and what arming it begins with, also as it is
foreseen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.engine import Engine
from atfnd.engine.event import CpusRead, NicAttached
from atfnd.engine.placement import steer
from atfnd.engine.placement.steering_method import method_of
from atfnd.engine.plan import changed, copy_of, foreseen
from atfnd.engine.prepare import homes, prepare
from atfnd.engine.table.memory import FoundFull, Memory
from atfnd.model import (
    ActionKind,
    Conflict,
    Cpu,
    Device,
    FlowRule,
    FlowState,
    Mode,
    NicView,
    Plan,
    Policy,
    Queue,
    Rss,
    SteeringMethod,
    Topology,
)
from atfnd.model.rests import Rest
from tests.engine.test_auto import CPUS
from tests.engine.test_steer import memory
from tests.serve.published import topology
from tests.values import NIC, RULE, flow, key, seen

NO_FILTERS = replace(NIC, caps=replace(NIC.caps, filters=False))
RFS_SETTINGS = {"rps-sock-flow-entries": "0"} | {f"rps-flow-cnt:{n}": "0" for n in range(4)}
NO_RSS = replace(NO_FILTERS, rss=None, settings=RFS_SETTINGS)
STRICT = replace(  # every rule asks for an order that no move of an entry is proven to keep
    NO_FILTERS,
    orders=frozenset({Mode.STRICT, Mode.BOUNDED}),
    unowned_rfs=True,
    settings=RFS_SETTINGS,
)
LATE = replace(  # and its driver may drop a filter after it has accepted it
    STRICT,
    caps=replace(NIC.caps, asynchronous=True, arfs=False),
    orders=frozenset({Mode.STRICT}),
)
XSK = Conflict("an XDP program owns queue 0", "stop it", blocks=True)

FILTERS, BY_RSS, RFS, NONE = (
    SteeringMethod.FILTERS,
    SteeringMethod.RSS,
    SteeringMethod.RFS,
    SteeringMethod.NONE,
)
MANUAL = frozenset({"rps-flow-cnt:2"})
KEPT = replace(STRICT, unowned_rfs=False, keeps_rfs=True)
OTHER_HASH = Rss(bytes(40), (0, 1), another="its RSS hash is not Toeplitz")
NO_CPUS = replace(
    NO_FILTERS,
    caps=replace(NO_FILTERS.caps, queue_cpu=False),
    queues=tuple(replace(queue, cpu=None) for queue in NIC.queues),
    settings=RFS_SETTINGS,
)
CHOICES = [
    (NIC, FILTERS, "takes 5-tuple filters"),
    (NO_FILTERS, BY_RSS, "no 5-tuple filters; flows are steered by their entries"),
    # No entry may move.
    (STRICT, RFS, "no rule has order: immediate"),
    (replace(STRICT, orders=frozenset({Mode.STRICT, Mode.IMMEDIATE})), BY_RSS, "by their entries"),
    (replace(KEPT, settings=dict.fromkeys(RFS_SETTINGS, "2048")), RFS, "no rule has order"),
    (KEPT, NONE, "RFS was not set up"),
    (replace(STRICT, settings={}), NONE, "the kernel offers no RFS here"),
    (replace(STRICT, manual=MANUAL), NONE, "another program changed the RFS tables"),
    # Filters may be dropped later.
    (LATE, RFS, "a rule with order: bounded lets flows move; the kernel hands packets on"),
    (replace(LATE, caps=replace(LATE.caps, arfs=True)), NONE, "order: bounded"),
    (replace(LATE, orders=STRICT.orders), FILTERS, "takes 5-tuple filters"),
    # There are no filters, and no table that can be used.
    (NO_RSS, RFS, "key is not known"),
    (replace(NO_FILTERS, rss=OTHER_HASH, settings=RFS_SETTINGS), RFS, "not Toeplitz"),
    (replace(NO_RSS, rss=NIC.rss, queues=NIC.queues[:1]), RFS, "has one receive queue"),
    (NO_CPUS, RFS, "the CPUs of its queues are not known, and cannot be set"),
    # Others are there.
    (replace(NIC, conflicts=(XSK,)), NONE, "XDP program"),
    (replace(NIC, conflicts=(replace(XSK, blocks=False),)), FILTERS, "takes 5-tuple filters"),
    (replace(NIC, paused=True), NONE, "paused"),
    (replace(NO_FILTERS, manual=frozenset({"rss"}), settings=RFS_SETTINGS), NONE, "another"),
    (replace(NO_RSS, manual=MANUAL), NONE, "another program"),
]


@pytest.mark.parametrize(("nic", "method", "words"), CHOICES)
def test_the_means_and_why(nic: NicView, method: SteeringMethod, words: str) -> None:
    found, why = method_of(nic)
    assert (found, words in str(why)) == (method, True), why


def chosen(nic: NicView) -> NicView:
    method, why = method_of(nic)
    return replace(nic, method=method, method_why=why)


def loose(count: int, node: int | None = None) -> NicView:
    """A NIC that nobody has set up: no queue on one CPU, aRFS on, ATR on."""
    settings = {"priv:flow-director-atr": "on", "rps-sock-flow-entries": "32768"}
    for n in range(count):
        settings |= {f"queue-cpu:{n}": "0-7", f"rps-flow-cnt:{n}": "2048", f"rps-cpus:{n}": ""}
        settings |= {f"xps-cpus:{n}": "", f"xps-rxqs:{n}": ""}
    queues = tuple(Queue(n, 100 + n, 30 + n, None, False, None) for n in range(count))
    return chosen(replace(NIC, queues=queues, settings=settings, device=Device(node=node)))


def applied(nic: NicView, plan: Plan) -> NicView:
    for action in plan:
        assert action.setting is None or nic.settings[action.setting] != action.value
        nic = changed(nic, action)
        if action.queue is not None:
            setting = f"queue-cpu:{action.queue}"
            nic = replace(nic, settings={**nic.settings, setting: str(action.new)})
    return chosen(nic)


def written(plan: Plan) -> dict[str | None, str | None]:
    return {action.setting: action.value for action in plan if action.kind is ActionKind.SETTING}


def confined(plan: Plan) -> dict[int | None, int | None]:
    return {a.queue: a.new for a in plan if a.kind is ActionKind.QUEUE_CPU}


def test_the_nics_node_first_and_siblings_last() -> None:
    assert list(confined(prepare(loose(8, node=1), topology())).values()) == [
        *(4, 6, 0, 2),
        *(5, 7, 1, 3),
    ]


def test_rfs_is_switched_on_where_it_is_the_means() -> None:
    plan = prepare(chosen(NO_RSS), topology())
    assert written(plan) == {
        "rps-sock-flow-entries": "32768",
        **{f"rps-flow-cnt:{n}": "8192" for n in range(4)},
    }
    assert confined(plan) == {}
    admins = {"rps-sock-flow-entries": "1000", "rps-flow-cnt:1": "4096"}
    own = chosen(replace(NO_RSS, settings={**RFS_SETTINGS, **admins}))
    assert written(prepare(own, topology())) == {f"rps-flow-cnt:{n}": "128" for n in (0, 2, 3)}


SOME_CPUS = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.none() | st.integers(0, 1)), min_size=1, max_size=9
)


@given(SOME_CPUS, st.integers(1, 12), st.none() | st.integers(0, 1), *[st.booleans()] * 3)
def test_preparing_twice_is_preparing_once(
    cpus: list[tuple[bool, bool, int | None]], queues: int, node: int | None, rules: bool,
    rss: bool, movable: bool,
) -> None:  # fmt: skip
    there = Topology(
        tuple(
            Cpu(n, online, cpu_node, 0, n // 2, (n & ~1, n | 1), (), isolated)
            for n, (online, isolated, cpu_node) in enumerate(cpus)
        )
    )
    nic = loose(queues, node)
    caps = replace(nic.caps, filters=rules, queue_cpu=movable)
    nic = chosen(replace(nic, caps=caps, rss=nic.rss if rss else None))
    plan = prepare(nic, there)
    after = applied(nic, plan)
    assert after.method is nic.method
    assert prepare(after, there) == ()
    allowed = {cpu.index for cpu in there.cpus if cpu.online and not cpu.isolated}
    assert set(confined(plan).values()) <= (allowed if movable else set())


def test_and_rfs_serves_it_where_that_is_on() -> None:
    nic = replace(
        NIC,
        caps=replace(NIC.caps, flow_types=frozenset()),
        settings={"rps-sock-flow-entries": "32768", "rps-flow-cnt:0": "8192"},
    )
    known = memory()
    assert steer.seen(seen(1, 1), nic, RULE, known, 1) == ()
    found = known.table.get(key(1))
    assert found is not None
    assert (found.state, found.target_cpu) == (FlowState.RFS, 1)
    assert str(found.why).startswith("RFS hands its packets on to CPU 1")
    steer.seen(seen(1, 1, rx_cpu=1), nic, RULE, known, 2)
    assert known.table.get(key(1)) is not None  # that they arrive right is RFS's doing


def test_a_queue_that_another_program_moved_after_us_is_at_home_where_that_put_it() -> None:
    """What it was before us is no longer anybody's wish."""
    settings = {f"queue-cpu:{queue.index}": str(queue.cpu) for queue in NIC.queues}
    theirs = replace(NIC, settings=settings, manual=frozenset({"queue-cpu:1"}))
    found = homes(theirs, {"queue-cpu:1": "5", "queue-cpu:2": "6"}, topology())
    assert found == {0: 0, 1: 1, 2: 6, 3: 3}


# What arming would begin with is foreseen as it is done, and foreseeing it changes nothing.

TOPOLOGY = Topology(tuple(CPUS.values()))
UNARMED = replace(NIC, armed=False)
NOW_NS = 10**12


def known_of(nic: NicView, rule: FlowRule = RULE, topology: Topology = TOPOLOGY) -> Memory:
    """A NIC that is watched, and one flow that its thread uses on CPU 1, off its packets' CPU."""
    engine = Engine(Memory.of(Policy((), (rule,), "auto", 100, 0, ())))
    for event in (CpusRead(topology), NicAttached(nic, armed=nic.armed)):
        list(engine.handle(event, 0))
    engine.memory.nics[nic.name].view = nic
    wanted = flow(1, app_cpu=1, rx_queue=3, rx_cpu=3)
    engine.memory.table.put(wanted)
    return engine.memory


def plan_of(known: Memory, topology: Topology = TOPOLOGY) -> Plan:
    copied = copy_of(known, NIC.name)
    return foreseen(known.nics[NIC.name].view, topology, copied, known.table, NOW_NS)


def test_settings_come_first_and_what_follows_counts_on_them() -> None:
    """Two queues are confined to no CPU: arming gives each one, and the flow goes to the queue
    that is then on its core, with the others where they were."""
    loose = {0: "0-3", 1: "0-3"}
    settings = {f"queue-cpu:{queue.index}": str(queue.cpu) for queue in NIC.queues}
    settings |= {f"queue-cpu:{index}": cpus for index, cpus in loose.items()}
    queues = tuple(replace(q, cpu=None) if q.index in loose else q for q in NIC.queues)
    known = known_of(replace(UNARMED, queues=queues, settings=settings))
    *confined, insert = plan_of(known)
    assert {(each.queue, each.new, each.kind) for each in confined} == {
        (0, 0, ActionKind.QUEUE_CPU),
        (1, 1, ActionKind.QUEUE_CPU),
    }
    assert (insert.kind, insert.key, insert.new) == (ActionKind.INSERT, key(1), 1)
    assert [each.state for each in known.table] == [FlowState.WANTED]


@pytest.mark.parametrize("armed", [True, False])
def test_what_another_program_set_is_written_only_by_arming_again(armed: bool) -> None:
    setting = "rps-cpus:2"
    nic = replace(NIC, armed=armed, settings={setting: "0-3"}, manual=frozenset({setting}))
    plan = plan_of(known_of(nic))
    assert [each.setting for each in plan if each.setting] == ([] if armed else [setting])


def test_what_a_plan_spends_is_not_spent() -> None:
    known = known_of(UNARMED)
    spending = known.nics[NIC.name].spending
    copied = copy_of(known, NIC.name).memory.nics[NIC.name].spending
    copied.promised.add(key(9))
    copied.later[key(9)] = Rest(1, 1)
    copied.found_full[4] = FoundFull(1, 1, 1)
    assert (spending.promised, spending.later, spending.found_full) == (set(), {}, {})
