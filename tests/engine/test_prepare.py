# SPDX-License-Identifier: GPL-2.0-or-later
"""Which means a NIC is steered by and why, and what arming it begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.placement import steer
from atfnd.engine.placement.steering_method import method_of
from atfnd.engine.prepare import homes, prepare
from atfnd.model import (
    ActionKind,
    Conflict,
    Cpu,
    Device,
    FlowState,
    Mode,
    NicView,
    Plan,
    Queue,
    Rss,
    SteeringMethod,
    Topology,
)
from tests.engine.test_steer import memory
from tests.serve.published import topology
from tests.values import NIC, RULE, key, seen

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
CHOICES = {
    "rules": (NIC, FILTERS, "takes 5-tuple filters"),
    "rss": (NO_FILTERS, BY_RSS, "no 5-tuple filters; flows are steered by their entries"),
    "no entry may move": (STRICT, RFS, "no rule has order: immediate"),
    "an entry may move, and RFS may be had, too": (
        replace(STRICT, orders=frozenset({Mode.STRICT, Mode.IMMEDIATE})),
        BY_RSS,
        "by their entries",
    ),
    "no entry may move, and RFS that was set up is kept": (
        replace(
            STRICT, unowned_rfs=False, keeps_rfs=True, settings=dict.fromkeys(RFS_SETTINGS, "2048")
        ),
        RFS,
        "no rule has order: immediate",
    ),
    "no entry may move, and no RFS was set up": (
        replace(STRICT, unowned_rfs=False, keeps_rfs=True),
        NONE,
        "RFS was not set up",
    ),
    "no entry may move, and there is no RFS": (
        replace(STRICT, settings={}),
        NONE,
        "the kernel offers no RFS here",
    ),
    "no entry may move, and RFS is another program's": (
        replace(STRICT, manual=frozenset({"rps-flow-cnt:2"})),
        NONE,
        "another program changed the RFS tables",
    ),
    "strict, and filters that may be dropped later": (
        LATE,
        RFS,
        "a rule with order: bounded lets flows move; the kernel hands packets on",
    ),
    "the same, and a driver with aRFS": (
        replace(LATE, caps=replace(LATE.caps, arfs=True)),
        NONE,
        "order: bounded",
    ),
    "bounded, and filters that may be dropped later": (
        replace(LATE, orders=frozenset({Mode.STRICT, Mode.BOUNDED})),
        FILTERS,
        "takes 5-tuple filters",
    ),
    "no table": (NO_RSS, RFS, "key is not known"),
    "not toeplitz": (
        replace(
            NO_FILTERS,
            rss=Rss(bytes(40), (0, 1), another="its RSS hash is not Toeplitz"),
            settings=RFS_SETTINGS,
        ),
        RFS,
        "not Toeplitz",
    ),
    "one queue": (
        replace(NO_RSS, rss=NIC.rss, queues=NIC.queues[:1]),
        RFS,
        "has one receive queue",
    ),
    "queues on CPUs that are not known and cannot be set": (
        replace(
            NO_FILTERS,
            caps=replace(NO_FILTERS.caps, queue_cpu=False),
            queues=tuple(replace(queue, cpu=None) for queue in NIC.queues),
            settings=RFS_SETTINGS,
        ),
        RFS,
        "the CPUs of its queues are not known, and cannot be set",
    ),
    "a blocking conflict": (replace(NIC, conflicts=(XSK,)), NONE, "XDP program"),
    "another conflict": (replace(NIC, conflicts=(replace(XSK, blocks=False),)), FILTERS, "filters"),
    "paused": (replace(NIC, paused=True), NONE, "paused"),
    "a table of another program's": (
        replace(NO_FILTERS, manual=frozenset({"rss"}), settings=RFS_SETTINGS),
        NONE,
        "another program",
    ),
    "RFS of another program's": (
        replace(NO_RSS, manual=frozenset({"rps-flow-cnt:2"})),
        NONE,
        "another program",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_means_and_why(name: str) -> None:
    nic, method, words = CHOICES[name]
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
    settings, queues = dict(nic.settings), {queue.index: queue for queue in nic.queues}
    for action in plan:
        if action.kind is ActionKind.QUEUE_CPU:
            assert action.queue is not None
            queues[action.queue] = replace(queues[action.queue], cpu=action.new)
            settings[f"queue-cpu:{action.queue}"] = str(action.new)
        else:
            assert action.setting is not None
            assert action.value is not None
            assert settings[action.setting] != action.value
            settings[action.setting] = action.value
    return chosen(replace(nic, settings=settings, queues=tuple(queues.values())))


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


CPUS = st.lists(
    st.tuples(st.booleans(), st.booleans(), st.none() | st.integers(0, 1)), min_size=1, max_size=9
)


@given(CPUS, st.integers(1, 12), st.none() | st.integers(0, 1), *[st.booleans()] * 3)
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
