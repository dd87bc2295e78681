# SPDX-License-Identifier: GPL-2.0-or-later
"""Steering by the indirection table: evidence, hold-down, and what is said of it. And a NIC's hash,
which is known when its driver is, or when flows agree."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine.command import Begin, Command, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import ForeignFound, NicAttached, NicRead, SocketReported
from atfnd.engine.hash_key import due
from atfnd.engine.indirection import entries
from atfnd.engine.placement import steer
from atfnd.engine.plan import copy_of, foreseen
from atfnd.engine.table.memory import Buckets, Memory
from atfnd.model import (
    Filter,
    FlowKey,
    FlowState,
    HashSeen,
    Match,
    NicView,
    Outcome,
    Plan,
    Policy,
    Rss,
    SteeringMethod,
    Thread,
    Topology,
    Transform,
)
from atfnd.model.nic import RSS_KEY
from atfnd.model.reason import Code
from atfnd.model.rss_hash import AGREE, hash_known, rss_index, rss_rings
from atfnd.model.toeplitz import MICROSOFT_KEY, rss_queue
from tests.engine.test_steer import HOLD_NS, memory
from tests.values import NIC, RULE, flow, key, seen

ENTRIES = 8
KEY = (1 << 257).to_bytes(40)  # the hash of flow 1 is 1
VIEW = replace(
    NIC,
    caps=replace(NIC.caps, filters=False),
    method=SteeringMethod.RSS,
    method_why=Code.KERNEL("this NIC has no 5-tuple filters"),
    rss=Rss(KEY, (0, 1, 2, 3) * (ENTRIES // 4)),
)


def entry_of(of: FlowKey) -> int:
    """Flow 9 shares entry 1 with flow 1."""
    return of.remote[-1] % ENTRIES


def table(plan: Plan) -> tuple[int, ...]:
    (action,) = plan
    assert action.setting == "rss"
    assert action.value is not None
    return tuple(map(int, action.value.split()))


def turned(nic: NicView, known: Memory, now_ns: int, refuse: int = 0) -> NicView:
    """One turn of the loop: plan, write, settle. Returns the NIC as it then is."""
    plan = entries.plan(nic, entry_of, known, now_ns)
    after, outcomes = nic, []
    if plan:
        if not refuse:
            after = replace(nic, rss=Rss(KEY, table(plan)))
        outcomes = [Outcome(plan[0], now_ns, refuse, None, "the NIC refused its table")]
    entries.record(nic.rss, after, outcomes, known, now_ns)
    return after


def used(nic: NicView, known: Memory, number: int, cpu: int, now_ns: int, size: int = 1000) -> None:
    """By a thread of its own."""
    thread = Thread(tid=100 + number, pid=100, comm="app", cgroup=None)
    event = seen(
        number, cpu, thread=thread, bytes=size, napi_id=None, rx_cpu=None, off_since_ns=now_ns
    )
    assert steer.seen(event, nic, RULE, known, now_ns) == ()


def line(known: Memory, number: int) -> tuple[FlowState, str]:
    found = known.table.get(key(number))
    assert found is not None
    return found.state, str(found.why)


def test_what_was_seen_before_a_move_is_no_evidence_against_it() -> None:
    known = memory()
    used(VIEW, known, 1, cpu=3, now_ns=1)
    nic = turned(VIEW, known, 10**9)
    found = known.table.get(key(1))
    assert found is not None
    known.table.put(found._replace(rx_queue=1, rx_cpu=1, used_ns=10**9 + 1))
    entries.look(nic, known)
    turned(nic, known, 2 * 10**9)
    assert line(known, 1)[0] is FlowState.RSS
    known.table.put(found._replace(rx_queue=1, rx_cpu=1, used_ns=3 * 10**9))
    entries.look(nic, known)
    turned(nic, known, 3 * 10**9)
    assert "it arrives on queue 1" in line(known, 1)[1]


def test_a_refused_table_is_reported_and_tried_no_more() -> None:
    known = memory()
    used(VIEW, known, 1, cpu=3, now_ns=1)
    turned(VIEW, known, 1, refuse=errno.EOPNOTSUPP)
    assert line(known, 1) == (FlowState.WANTED, "the NIC refused its table")
    entries.look(VIEW, known)
    assert table(entries.plan(VIEW, entry_of, known, 2))[1] == 3  # tried again, not held


def test_it_is_foreseen_what_arming_would_write() -> None:
    known, unarmed = memory(), replace(VIEW, armed=False)
    used(unarmed, known, 1, cpu=3, now_ns=1)
    copied = copy_of(known, "nic")
    plan = foreseen(unarmed, Topology(()), copied, known.table, 5)
    assert table(plan) == (0, 3, 2, 3, 0, 1, 2, 3)
    assert not known.table.planned("nic")
    known.nics["nic"].buckets = Buckets((KEY, ENTRIES), {1: 5})  # it has just moved, and is held
    assert foreseen(unarmed, Topology(()), copy_of(known, "nic"), known.table, 5) == ()


STEPS = st.lists(
    st.tuples(
        st.integers(0, 19),  # flow
        st.integers(0, 5),  # CPU; no queue is on 4 and 5
        st.integers(0, 10_000),  # bytes
        st.integers(1, HOLD_NS),  # time
        st.booleans(),  # a look
    ),
    max_size=30,
)


def history(steps: list[tuple[int, int, int, int, bool]]) -> list[tuple[int, NicView]]:
    """The table after every step; each step is checked."""
    known, nic, now_ns = memory(), VIEW, 1
    moved_ns: dict[int, int] = {}
    states = []
    for number, cpu, size, step_ns, looks in steps:
        now_ns += step_ns
        used(nic, known, number, cpu, now_ns, size)
        if looks:
            entries.look(nic, known)
        steer.due({"nic": nic}, known, now_ns)
        touched = {entry_of(each) for each in known.table.planned("nic")}
        after = turned(nic, known, now_ns)
        assert nic.rss is not None
        assert after.rss is not None
        used_on = {(entry_of(each.key), each.app_cpu) for each in known.table}
        for entry in range(ENTRIES):
            old, new = nic.rss.table[entry], after.rss.table[entry]
            if old != new:
                assert entry in touched
                assert (entry, new) in used_on  # queue N is on CPU N
                assert now_ns - moved_ns.get(entry, -HOLD_NS) >= HOLD_NS
                moved_ns[entry] = now_ns
        nic = after
        states.append((now_ns, nic))
    return states


@given(STEPS)
def test_an_entry_moves_on_evidence_and_not_within_hold_down(
    steps: list[tuple[int, int, int, int, bool]],
) -> None:
    assert history(steps) == history(steps)  # and the same evidence leads to the same table


def test_with_another_key_what_was_known_of_entries_is_forgotten() -> None:
    known = memory()
    used(VIEW, known, 1, cpu=3, now_ns=1)
    turned(VIEW, known, 1)
    other = replace(VIEW, rss=Rss(bytes([1] * 40), (0, 1, 2, 3) * (ENTRIES // 4)))
    entries.look(other, known)
    plan = entries.plan(other, lambda key: 2, known, 2)  # nor is it held: that was another entry
    assert table(plan) == (0, 1, 3, 3, 0, 1, 2, 3)


def test_a_flow_with_a_filter_is_not_led_by_its_entry() -> None:
    """The NIC took filters before, and keeps this one: its queue is the filter's."""
    known = memory()
    steered = flow(1, state=FlowState.STEERED, location=7, target_queue=0, app_cpu=3)
    known.table.put(steered)
    used(VIEW, known, 9, cpu=3, now_ns=1)
    entries.look(VIEW, known)
    nic = turned(VIEW, known, 1)
    entries.look(nic, known)
    turned(nic, known, 2)
    assert known.table.get(key(1)) == steered
    assert line(known, 9)[0] is FlowState.RSS


# What is known of a NIC's hash, and when its key is written.

TABLE = (0, 1, 2, 3) * 32
NAMED = Rss(MICROSOFT_KEY, TABLE)
UNPROVEN = Rss(MICROSOFT_KEY, TABLE, tuple(Transform), named=False)
ANY, TCP4 = frozenset(range(4)), (4, 6)


class Bed:
    """An engine with one NIC, whose hash applies `transform`."""

    def __init__(self, rss: Rss, transform: Transform = Transform.NONE) -> None:
        self.engine = Engine(Memory.of(Policy((), (RULE,), "auto", 4096, 0, ())))
        self.rss, self.transform, self.said = rss, transform, list[str]()
        self.tell(NicAttached(replace(NIC, rss=rss), armed=True), ForeignFound("nic", ()))

    def tell(self, *events: object) -> list[Command]:
        commands = [each for event in events for each in self.engine.handle(event, 1)]  # type: ignore[arg-type]
        self.said += [
            str(each.why) for each in commands if isinstance(each, Log) and each.kind == "hash"
        ]
        return commands

    def sees(self, *numbers: int, queue: int | None = None) -> list[Command]:
        return [each for number in numbers for each in self._sees(number, queue)]

    def _sees(self, number: int, queue: int | None) -> list[Command]:
        at = rss_queue(self.rss, key(number), self.transform) if queue is None else queue
        assert at is not None
        event = seen(number, app_cpu=(at + 1) % 4, napi_id=100 + at, rx_cpu=at)
        return self.tell(SocketReported("nic", event, RULE))

    @property
    def view(self) -> NicView:
        return self.engine.views["nic"]

    def rings(self, number: int = 999) -> frozenset[int] | None:
        return rss_rings(self.view, key(number))


def wrong(rss: Rss, number: int, *transforms: Transform) -> int:
    """A queue that none of these gives a flow."""
    return min(ANY - {rss_queue(rss, key(number), each) for each in transforms or tuple(Transform)})


@pytest.mark.parametrize("transform", Transform)
def test_flows_prove_which_transform_it_is(transform: Transform) -> None:
    bed = Bed(UNPROVEN, transform)
    bed.sees(*range(AGREE - 1))
    assert bed.rings() == ANY
    assert not bed.said
    bed.sees(*range(AGREE, 2 * AGREE))
    assert [*(bed.rings() or ())] == [rss_queue(UNPROVEN, key(999), transform)]
    assert len(bed.said) == 1
    assert "flows that were seen agree" in bed.said[0]


@pytest.mark.parametrize("rss", [NAMED, UNPROVEN], ids=["named", "proven"])
def test_one_flow_that_disagrees_ends_it_for_this_life(rss: Rss) -> None:
    bed = Bed(rss)
    bed.sees(*range(2 * AGREE))
    assert len(bed.rings() or ()) == 1
    bed.sees(500, queue=wrong(rss, 500))
    assert bed.rings() == ANY
    assert "arrived on another queue than its hash says" in bed.said[-1]
    bed.sees(*range(100, 100 + 2 * AGREE))
    assert bed.rings() == ANY
    bed.tell(NicRead(replace(bed.view, settings={"rss": "default"})))
    assert bed.rings() == ANY
    anew = tuple(replace(queue, napi_id=200 + queue.index) for queue in NIC.queues)
    bed.tell(NicRead(replace(bed.view, queues=anew)))
    assert (len(bed.rings() or ()) == 1) is rss.named


def test_a_table_that_was_read_late_contradicts_nothing() -> None:
    bed = Bed(NAMED)
    bed.sees(1, queue=wrong(NAMED, 1))
    assert bed.rings() == ANY
    bed.tell(NicRead(replace(bed.view, rss=replace(NAMED, table=(3, 2, 1, 0) * 32))))
    assert len(bed.rings() or ()) == 1


def test_flows_that_a_filter_may_lead_say_nothing() -> None:
    bed, theirs = Bed(NAMED), Filter(1, Match.of(FlowKey(6, bytes(4), 443, bytes(4), 0)), 0)
    bed.tell(ForeignFound("nic", (theirs,)))
    bed.sees(1, queue=wrong(NAMED, 1))
    bed.tell(ForeignFound("nic", ()))
    bed.sees(1, queue=wrong(NAMED, 1))  # it has an entry: perhaps a filter, too
    assert len(bed.rings() or ()) == 1


@pytest.mark.parametrize(
    "rss",
    [
        replace(NAMED, another="gve has a hash of its own"),
        replace(NAMED, other_fields=frozenset({TCP4})),
        replace(NAMED, unsaid=frozenset({TCP4})),
        replace(NAMED, key=b""),
    ],
    ids=["its own", "other fields", "unsaid fields", "no key"],
)
def test_where_it_is_not_known_a_flow_may_come_by_any_queue(rss: Rss) -> None:
    bed = Bed(rss)
    assert rss_index(bed.view, key(1)) is None
    [begin] = [each for each in bed.sees(1, queue=2) if isinstance(each, Begin)]
    assert (begin.wanted[0].origins, begin.wanted[0].rss) == (ANY, ANY)
    known = hash_known(bed.view, TCP4)
    assert known is not None
    assert not known.known


# When the key is written, and when it is put back.

OWN, SYMMETRIC = "0102" * 19 + "0a0b", "6d5a" * 20
ASKED = replace(NIC, symmetric_hash=True, settings={RSS_KEY: OWN})


def written(nic: NicView, was: str | None = None) -> list[tuple[str | None, str | None]]:
    found = due(nic, {} if was is None else {RSS_KEY: was})
    return [(each.setting, each.value) for each in found]


def test_a_key_of_the_same_length_is_written_once() -> None:
    assert written(ASKED) == [(RSS_KEY, SYMMETRIC)]
    assert written(replace(ASKED, settings={RSS_KEY: SYMMETRIC}), was=OWN) == []
    longer = replace(ASKED, settings={RSS_KEY: OWN + "ff" * 12})
    assert written(longer) == [(RSS_KEY, SYMMETRIC + "6d5a" * 6)]


@pytest.mark.parametrize(
    "changes",
    [{"armed": False}, {"manual": frozenset({RSS_KEY})}, {"settings": {}}],
    ids=["not armed", "another program's", "no key"],
)
def test_what_is_not_ours_is_not_written(changes: dict[str, object]) -> None:
    for nic in (ASKED, replace(ASKED, symmetric_hash=False, settings={RSS_KEY: SYMMETRIC})):
        assert written(replace(nic, **changes), was=OWN) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("transform", [Transform.XOR, Transform.OR_XOR])
def test_a_nic_that_is_symmetric_already_gets_no_key(transform: Transform) -> None:
    rss = Rss(bytes.fromhex(OWN), (0, 1, 2, 3), (transform,))
    assert written(replace(ASKED, rss=rss)) == []
    proven = HashSeen((transform,), frozenset(range(24)), 1e-12)
    unsaid = replace(rss, transforms=tuple(Transform), named=False)
    assert written(replace(ASKED, rss=unsaid)) == [(RSS_KEY, SYMMETRIC)]
    shown = replace(ASKED, rss=unsaid, hash_seen={(4, 6): proven})
    assert written(shown) == []
    ours = replace(ASKED, rss=rss, settings={RSS_KEY: SYMMETRIC})  # an admin switched it on later
    assert written(ours, was=OWN) == [(RSS_KEY, OWN)]
