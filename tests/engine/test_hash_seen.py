# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC's hash is known when its driver is, or when flows agree; one flow that does not ends it.
Where it is not known, a flow may come by any queue of RSS. And when its key is written."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine.command import Begin, Command, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import ForeignFound, NicAttached, NicRead, SocketReported
from atfnd.engine.hash_key import due
from atfnd.engine.table.memory import Memory
from atfnd.model import Filter, FlowKey, HashSeen, Match, NicView, Policy, Rss, Transform
from atfnd.model.nic import RSS_KEY
from atfnd.model.rss_hash import AGREE, hash_known, rss_index, rss_rings
from atfnd.model.toeplitz import MICROSOFT_KEY, rss_queue
from tests.values import NIC, RULE, key, seen

__all__: list[str] = []

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
