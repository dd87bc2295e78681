# SPDX-License-Identifier: GPL-2.0-or-later
"""RFS on the queues that nobody owns, while threads that wander use what comes through them."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine.command import Begin
from atfnd.engine.engine import Engine
from atfnd.engine.event import MovesReported, SocketReported
from atfnd.engine.ownership.owner import Owned
from atfnd.engine.placement import unowned
from atfnd.engine.prepare import prepare
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    Cpu,
    Distance,
    Mode,
    NicView,
    Outcome,
    SteeringMethod,
    Topology,
)
from atfnd.model.nic import RFS_TABLE
from atfnd.model.reason import Code
from tests.values import NIC, RULE, THREAD, flow, key, memory_of, one_rule, seen

NOW_NS = 10**11
OFF = {RFS_TABLE: "0"} | {f"rps-flow-cnt:{n}": "0" for n in range(4)}
ARMED = replace(NIC, armed=True, method=SteeringMethod.FILTERS, settings=OFF)
ON = "8192"  # a quarter of 32768
CACHES = (0, 1), (0, 1), (2, 3), (2, 3)
TWO_CACHES = [Cpu(at, True, 0, 0, at, (at,), CACHES[at]) for at in range(4)]


def memory(nic: NicView = ARMED, *, rfs: bool = True) -> Memory:
    known = memory_of(FlowTable(100), one_rule(0, 1 << 60, Mode.STRICT))
    known.nics["nic"].view = replace(nic, unowned_rfs=rfs)
    return known


def asked(known: Memory, now_ns: int = NOW_NS) -> dict[str, str | None]:
    view = known.nics["nic"].view
    return {each.setting or "": each.value for each in unowned.partner(view, known, now_ns)}


def carried_out(known: Memory, now_ns: int = NOW_NS, code: int = 0) -> dict[str, str | None]:
    """What is asked for, and is then done or refused."""
    view = known.nics["nic"].view
    plan = unowned.partner(view, known, now_ns)
    done = (Outcome(each, now_ns, code, None, "") for each in plan)
    Engine(known).handle(MovesReported(tuple(done)), now_ns)
    return {each.setting or "": each.value for each in plan}


def taken_over(view: NicView, originals: dict[str, str], known: Memory, now_ns: int) -> None:
    known.nics["nic"].settings.afresh(originals)
    unowned.taken_over(view, originals, known, now_ns)


def heard(known: Memory, queue: int = 1, now_ns: int = NOW_NS) -> None:
    """A thread that wanders uses a flow that comes through this queue."""
    wanders = flow(queue, rx_queue=queue, home=Distance.MACHINE)
    assert unowned.heard(known.nics["nic"].view, wanders, known, now_ns)


@pytest.mark.parametrize(
    ("home", "app_cpu", "for_rfs"),
    [
        (Distance.CPU, 1, False),
        (Distance.CPU, 2, True),  # its move waits, or its queue serves others
        (Distance.LLC, 1, True),
        (Distance.MACHINE, 1, True),
    ],
)
def test_rfs_is_for_flows_that_their_queue_does_not_deliver_where_their_thread_stays(
    home: Distance, app_cpu: int, for_rfs: bool
) -> None:
    known = memory()
    used = flow(1, rx_queue=1, home=home, app_cpu=app_cpu)
    assert unowned.heard(known.nics["nic"].view, used, known, NOW_NS) == for_rfs
    assert bool(asked(known)) == for_rfs


KEEPS = replace(
    ARMED,
    keeps_rfs=True,
    settings=dict.fromkeys((f"rps-flow-cnt:{n}" for n in range(4)), "2048")
    | {RFS_TABLE: "32768", "rps-flow-cnt:2": "0"},
)


def test_kept_rfs_that_an_earlier_run_switched_off_comes_back() -> None:
    known = memory(replace(KEEPS, settings={**KEEPS.settings, "rps-flow-cnt:1": "0"}), rfs=False)
    taken_over(known.nics["nic"].view, {"rps-flow-cnt:1": "1024"}, known, NOW_NS)
    assert asked(known) == {"rps-flow-cnt:1": "1024"}


def test_each_time_that_it_is_soon_switched_off_again_it_stays_off_for_longer() -> None:
    known, at_ns, rests = memory(), NOW_NS, []
    for _ in range(4):
        heard(known, 1, at_ns)
        assert carried_out(known, at_ns)["rps-flow-cnt:1"] == ON
        known.nics["nic"].owned = {1: Owned(("thread", 7), 0)}
        carried_out(known, at_ns)
        known.nics["nic"].owned = {}
        rests.append(known.nics["nic"].rfs.switched_off[1].until_ns - at_ns)
        at_ns += rests[-1]
        heard(known, 1, at_ns - 1)
        assert asked(known, at_ns - 1) == {}
        at_ns += 200 * 10**9 if len(rests) == 3 else 0
    assert rests == [10**9, 2 * 10**9, 4 * 10**9, 10**9]


LATER_NS = NOW_NS + unowned.REST_NS
WANDERS = {"home": Distance.MACHINE, "left": Code.LEFT_WANDERS("it wanders"), "used_ns": LATER_NS}
SETTLED = {"home": Distance.CPU, "app_cpu": 1, "used_ns": LATER_NS}


@pytest.mark.parametrize(
    ("used", "stays"),
    [
        (WANDERS, True),  # though it is reported no more
        (WANDERS | {"used_ns": NOW_NS}, False),
        # Its thread stayed on the queue's CPU when it was reported, and has left it.
        (SETTLED | {"rx_cpu": 3}, True),
        (SETTLED | {"rx_cpu": 1}, False),
        (SETTLED, False),
    ],
)
def test_a_flow_that_is_used_and_handed_on_keeps_rfs_on_its_queue(
    used: dict[str, Any], stays: bool
) -> None:
    known = memory()
    heard(known)
    carried_out(known)
    known.audited_ns = LATER_NS
    known.table.put(flow(1, rx_queue=1)._replace(**used))
    unowned.looked(known.nics["nic"].view, known, LATER_NS)
    assert asked(known, LATER_NS) == ({} if stays else {"rps-flow-cnt:1": "0"})


def test_what_was_refused_is_tried_again_later_each_time() -> None:
    known, at_ns = memory(), NOW_NS
    for seconds in (1, 2, 4):
        heard(known, 1, at_ns)
        assert "rps-flow-cnt:1" in carried_out(known, at_ns, errno.EAGAIN)
        at_ns += seconds * 10**9
        heard(known, 1, at_ns - 1)
        assert asked(known, at_ns - 1) == {}


@pytest.mark.parametrize(
    ("homes", "gets"),
    [({1: 0}, False), ({0: 0, 1: 2, 2: 1, 3: 3}, True)],
    ids=["away", "places exchanged"],
)
def test_a_queue_that_is_away_from_its_cpu_gets_none(homes: dict[int, int], gets: bool) -> None:
    known = memory()
    known.nics["nic"].lent.homes = homes
    heard(known)
    assert bool(asked(known)) is gets


@pytest.mark.parametrize(
    "nic",
    [
        replace(ARMED, armed=False),
        replace(ARMED, method=SteeringMethod.RSS),
        replace(ARMED, caps=replace(ARMED.caps, arfs=True)),
        replace(ARMED, settings={k: v for k, v in OFF.items() if k != RFS_TABLE}),
        replace(ARMED, manual=frozenset({RFS_TABLE})),
        replace(ARMED, manual=frozenset({"rps-flow-cnt:1"})),
    ],
)
def test_where_it_cannot_be_no_queue_gets_rfs(nic: NicView) -> None:
    known = memory(nic)
    heard(known)
    assert asked(known) == {}


def test_arming_leaves_rfs_to_the_partner_where_it_may_be_one() -> None:
    """Or as it was found, where that is kept."""
    on = replace(ARMED, settings=OFF | {"rps-flow-cnt:1": ON})
    partner = replace(on, unowned_rfs=True)
    arfs = replace(on.caps, arfs=True)
    by_rss = replace(partner, method=SteeringMethod.RSS)
    others = replace(KEEPS, keeps_rfs=False)
    nics = on, partner, replace(partner, caps=arfs), by_rss, KEEPS, others
    plans = [prepare(nic, Topology((), ())) for nic in nics]
    off = [sum("rps-flow-cnt:" in (each.setting or "") for each in plan) for plan in plans]
    assert off == [1, 0, 1, 1, 0, 3]


@pytest.mark.parametrize("method", [SteeringMethod.FILTERS, SteeringMethod.RSS, SteeringMethod.RFS])
def test_rfs_that_an_earlier_run_left_on_is_ours_to_switch_off(method: SteeringMethod) -> None:
    """Unless it steers the whole NIC."""
    settings = OFF | {"rps-flow-cnt:1": ON, "rps-flow-cnt:2": ON}
    known = memory(replace(ARMED, method=method, settings=settings))
    view = known.nics["nic"].view
    originals = dict.fromkeys(("rps-flow-cnt:1", "rps-flow-cnt:3"), "0")
    taken_over(view, originals, known, NOW_NS)
    off = {} if method is SteeringMethod.RFS else {"rps-flow-cnt:1": "0"}
    assert asked(known) | asked(known, NOW_NS + unowned.REST_NS) == off


@pytest.mark.parametrize("app_cpu", [0, 3])  # in the cache of CPU 1, and in the other
def test_a_thread_that_wanders_within_a_cache_gets_rfs_and_no_filter(app_cpu: int) -> None:
    """Its flow arrives on CPU 1 by queue 1."""
    known = memory()
    known.know_cpus(TWO_CACHES)
    event = seen(1, app_cpu, rx_cpu=1, home=Distance.LLC, napi_id=101, pinned=False)
    said = Engine(known).handle(SocketReported("nic", event, RULE, None), NOW_NS)
    begun = [each for command in said if isinstance(command, Begin) for each in command.wanted]
    assert [each.action.setting for each in begun] == [RFS_TABLE, "rps-flow-cnt:1"]
    found = known.table.get(key(1))
    assert found is not None
    assert found.location is None
    assert "wanders within the last-level cache of CPUs" in str(found.why)
    unowned.looked(known.nics["nic"].view, known, later_ns := NOW_NS + unowned.REST_NS)
    assert asked(known, later_ns) == {}  # it is used, so its RFS stays on


@pytest.mark.parametrize(("value", "due_ns"), [("0", 0), (ON, None)])
def test_what_is_switched_on_lets_no_queue_follow(value: str, due_ns: int | None) -> None:
    known = memory()
    known.table.put(used := flow(1, rx_queue=1, thread=THREAD))
    assert used.thread is not None
    known.nics["nic"].owned = {1: Owned(("thread", used.thread.tid), 0)}
    known.nics["nic"].settings.asked.add("rps-flow-cnt:1")
    done = Outcome(
        Action.of_setting("nic", "rps-flow-cnt:1", value, Code.UNSAID()), NOW_NS, 0, None, ""
    )
    Engine(known).handle(MovesReported((done,)), NOW_NS)
    assert known.table.next_due_ns() == due_ns
