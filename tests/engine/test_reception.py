# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes packets out of the rings of queues: what is written, and what is refused."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import reception
from atfnd.engine.engine import Engine
from atfnd.engine.event import MovesReported
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    Cpu,
    Mode,
    NicView,
    Outcome,
    Placement,
    PlacementKind,
    Reception,
    ReceptionMode,
)
from atfnd.model.nic import RFS_FLOWS, RSS_KEY
from atfnd.model.reason import Code
from atfnd.model.reception import DEFER, OF_NAPI, SUSPEND, THREAD, TIMEOUT
from tests.values import NIC, memory_of, one_rule

NOW_NS = 10**11
QUEUES = range(4)
ZERO = {f"{kind}:{queue}": "0" for queue in QUEUES for kind in OF_NAPI}
ARMED = replace(NIC, armed=True, up=True, settings=ZERO)
DEFERRED = Reception(ReceptionMode.DEFERRED, 50_000, 100)
SUSPENDED = Reception(ReceptionMode.SUSPENDED, 20_000, 100, 20_000_000)
DEDICATED = Reception(ReceptionMode.DEDICATED, 100_000, 10_000)
BUSY = Reception(ReceptionMode.BUSY)
TIMES = {TIMEOUT: "50000", DEFER: "100"}


def memory(nic: NicView = ARMED, **of_rule: Any) -> Memory:
    rules = one_rule(0, 1 << 60, Mode.STRICT)
    rule = replace(rules.by_name["rest"], **of_rule)
    known = memory_of(FlowTable(100), replace(rules, by_name={"rest": rule}))
    known.nics["nic"].view = nic
    known.know_cpus([Cpu(at, True, 0, 0, at, (at,), (0, 1, 2, 3)) for at in QUEUES])
    return known


def asked(known: Memory, code: int = 0, now_ns: int = NOW_NS) -> dict[str, str | None]:
    """What is asked for, and is then done or refused."""
    plan = reception.due(known.nics["nic"].view, known, now_ns)
    for each in plan:
        written(known, Outcome(each, now_ns, code, None, "refused"), now_ns)
    return {each.setting or "": each.value for each in plan}


def written(known: Memory, outcome: Outcome, now_ns: int) -> None:
    Engine(known).handle(MovesReported((outcome,)), now_ns)


def why_not(known: Memory) -> dict[int, str]:
    return {n: str(why) for n, why in known.nics["nic"].reception.why_not.items()}


def wants(known: Memory, wanted: Reception) -> None:
    known.nics["nic"].view = replace(known.nics["nic"].view, reception=wanted)


def test_what_was_given_back_is_not_touched_any_more() -> None:
    known = memory()
    for wanted in (DEFERRED, Reception()):
        wants(known, wanted)
        asked(known)
    view = known.nics["nic"].view
    known.nics["nic"].view = replace(view, settings={**view.settings, f"{TIMEOUT}:1": "7000"})
    assert asked(known) == {}
    wants(known, DEFERRED)
    asked(known)
    wants(known, Reception())
    assert asked(known)[f"{TIMEOUT}:1"] == "7000"


def test_what_another_program_wrote_just_before_our_write_is_given_back() -> None:
    """The last look did not see it; the write did."""
    known = memory()
    wants(known, DEFERRED)
    for each in reception.due(known.nics["nic"].view, known, NOW_NS):
        before = "7000" if each.setting == f"{TIMEOUT}:1" else "0"
        done = Outcome(each, NOW_NS, 0, None, "as planned", None, before, before)
        written(known, done, NOW_NS)
    wants(known, SUSPENDED)
    asked(known)
    wants(known, Reception())
    given_back = asked(known)
    assert given_back[f"{TIMEOUT}:1"] == "7000"
    assert given_back[f"{TIMEOUT}:0"] == "0"


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({"armed": False}, {f"{DEFER}:2", f"{DEFER}:1"}),
        ({"up": False}, {f"{DEFER}:2", f"{DEFER}:1"}),
        ({"manual": frozenset({f"{DEFER}:2"})}, {f"{DEFER}:2"}),
    ],
)
def test_what_is_not_ours_to_write_is_left_alone(changes: dict[str, Any], left: set[str]) -> None:
    known = memory(replace(ARMED, **changes))
    wants(known, DEFERRED)
    assert left == {f"{DEFER}:2", f"{DEFER}:1"} - asked(known).keys()


def test_a_kernel_that_knows_the_interface_only_serves_no_rule() -> None:
    whole = replace(ARMED, settings={TIMEOUT: "0", DEFER: "0"})
    dedicated = Placement(PlacementKind.DEDICATED, frozenset({3}))
    known = memory(whole, reception=DEFERRED, placement=dedicated)
    assert asked(known) == {}
    assert why_not(known) == {3: "this kernel knows it of the whole interface only (before 6.13)"}


@pytest.mark.parametrize(
    ("wanted", "lacks", "why"),
    [
        (SUSPENDED, SUSPEND, "suspended: this kernel has no irq-suspend-timeout (6.13)"),
        (DEFERRED, TIMEOUT, "deferred: which NAPI serves the queue is not known"),
        (BUSY, "nothing", "busy: its NAPI cannot have a thread"),
    ],
)
def test_a_mode_that_lacks_something_is_refused_as_a_whole(
    wanted: Reception, lacks: str, why: str
) -> None:
    settings = {name: value for name, value in ZERO.items() if not name.startswith(lacks)}
    known = memory(replace(ARMED, settings=settings))
    wants(known, wanted)
    assert asked(known) == {}
    assert why_not(known)[0] == why


def test_a_dedicated_queue_has_a_thread_first_and_gives_it_back() -> None:
    softirq = tuple(replace(queue, threaded=False, pid=None) for queue in ARMED.queues)
    threads = {f"{THREAD}:{queue}": "0" for queue in QUEUES}
    known = memory(replace(ARMED, queues=softirq, settings=ZERO | threads))
    wants(known, DEDICATED)
    names = [*asked(known)]
    assert names[0] == f"{THREAD}:0"
    assert names.index(f"{THREAD}:0") < names.index(f"{TIMEOUT}:0") < names.index(f"{DEFER}:0")
    wants(known, DEFERRED)
    assert asked(known) == threads | {
        f"{kind}:{queue}": value for queue in QUEUES for kind, value in TIMES.items()
    }


def test_after_a_restart_an_earlier_mode_is_given_back() -> None:
    known = memory(replace(ARMED, settings=ZERO | {f"{TIMEOUT}:1": "50000"}))
    known.nics["nic"].settings.afresh({f"{TIMEOUT}:1": "0", "queue-cpu:1": "0-3"})
    assert asked(known) == {f"{TIMEOUT}:1": "0"}


def test_a_write_of_a_policy_before_this_one_is_given_back() -> None:
    """It waited for a move. A loan of a move is none of ours."""
    known = memory(replace(ARMED, settings=ZERO | {f"{TIMEOUT}:1": "7000"}))
    wants(known, DEFERRED)
    late = reception.due(known.nics["nic"].view, known, NOW_NS)
    known.nics["nic"].settings.afresh({})
    wants(known, Reception())
    for each in late:
        loan = replace(each, loan=True)
        written(known, Outcome(loan, NOW_NS, 0, None, "as planned"), NOW_NS)
    assert asked(known) == {}
    for each in late:
        written(known, Outcome(each, NOW_NS, errno.EBUSY, None, "refused"), NOW_NS)
    assert asked(known) == {}
    assert why_not(known) == {}
    for each in late:
        written(known, Outcome(each, NOW_NS, 0, None, "as planned"), NOW_NS)
    assert asked(known)[f"{TIMEOUT}:1"] == "7000"


@pytest.mark.parametrize("name", [RSS_KEY, f"{RFS_FLOWS}:1", f"{TIMEOUT}:1"])
def test_what_was_written_is_known_before_the_nic_is_read_again(name: str) -> None:
    """Else a policy that comes in that moment asks for nothing."""
    known = memory(replace(ARMED, settings=ZERO | {name: "1"}))
    action = Action.of_setting("nic", name, "0", Code.UNSAID())
    written(known, Outcome(action, NOW_NS, 0, None, "as planned", None, "1", "0"), NOW_NS)
    assert known.nics["nic"].view.settings[name] == "0"


def test_what_a_move_has_taken_away_is_not_given_back_yet() -> None:
    """A loan made it what it was before us, and ends: then it is to be given back."""
    known = memory()
    wants(known, DEFERRED)
    asked(known)
    wants(known, Reception())
    for each in reception.due(known.nics["nic"].view, known, NOW_NS):
        before = "0" if each.setting == f"{TIMEOUT}:1" else TIMES[TIMEOUT]
        done = Outcome(each, NOW_NS, 0, None, "it is already so", None, before, "0")
        written(known, done, NOW_NS)
    view = known.nics["nic"].view
    known.nics["nic"].view = replace(view, settings={**view.settings, f"{TIMEOUT}:1": "200000"})
    assert asked(known) == {f"{TIMEOUT}:1": "0"}
