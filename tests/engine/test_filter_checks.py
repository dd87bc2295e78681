# SPDX-License-Identifier: GPL-2.0-or-later
"""Entries against what the NIC and the machine have: who took a rule away, what an
earlier run left, what is idle."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable, t_delete_in_force_ns
from atfnd.engine.table.memory import Memory
from atfnd.model import (
    Action,
    ActionKind,
    Cpu,
    Filter,
    Flow,
    FlowState,
    Match,
    NicView,
    Outcome,
    Plan,
    SocketUse,
)
from atfnd.model.reason import Code
from tests.values import NIC, RULE, flow, key, memory_of, one_rule, seen

__all__: list[str] = []

S = 1_000_000_000
ASYNC = replace(NIC, caps=replace(NIC.caps, asynchronous=True))
OURS = Filter(7, Match.of(key(1)), 1)
USE = SocketUse(1001, key(1), 1, 101, 1, 0)
OTHER = Filter(3, None, 0, None, "flow-type ether proto 0x88f7 action 0")


def memory() -> Memory:
    return memory_of(FlowTable(100), one_rule(0, 1000 * S))


def settled(plan: Plan, known: Memory, at_ns: int) -> Plan:
    for action in plan:
        audit.record(Outcome(action, at_ns, 0, 7, ""), known)
    return plan


def steered(nic: NicView = ASYNC, at_ns: int = S) -> Memory:
    """Flow 1, by the rule at location 7 to queue 1."""
    known = memory()
    assert settled(steer.seen(seen(1, 1), nic, RULE, known, at_ns), known, at_ns)
    return known


def entry(known: Memory) -> Flow:
    found = known.table.get(key(1))
    assert found is not None
    return found


def test_a_rule_not_in_the_list_at_once_is_waited_for() -> None:
    known = steered()
    assert audit.check_filters(ASYNC, [OTHER], known, S + S // 2) == []
    assert audit.check_filters(ASYNC, [OTHER, OURS], known, 3 * S) == []
    assert entry(known).state is FlowState.STEERED


def test_a_full_table_found_later_is_overflow() -> None:
    known = steered()
    full = replace(ASYNC, caps=replace(ASYNC.caps, filter_slots=1))
    (dropped,) = audit.check_filters(full, [OTHER], known, 3 * S)
    assert dropped.state is FlowState.OVERFLOW


def test_evidence_does_not_shorten_the_back_off() -> None:
    known = steered()
    audit.check_filters(ASYNC, [], known, 3 * S)
    assert steer.seen(seen(1, 1), ASYNC, RULE, known, 3 * S + 1) == ()
    assert "dropped it once" in str(entry(known).why)
    assert len(steer.due({"nic": ASYNC}, known, 4 * S)) == 1


def test_what_is_known_of_drops_ends_with_the_flow() -> None:
    known = steered()
    audit.check_filters(ASYNC, [], known, 3 * S)
    retire.gone(1001, known)
    audit.check_sockets([], {}, known, 4 * S)
    assert not known.table.notes()


def test_a_rule_that_was_there_was_removed_by_somebody() -> None:
    known = steered()
    assert audit.check_filters(ASYNC, [OURS], known, 3 * S) == []
    (manual,) = audit.check_filters(ASYNC, [], known, 5 * S)
    assert (manual.state, str(manual.why)) == (
        FlowState.MANUAL,
        "another program removed its filter at location 7",
    )


@pytest.mark.parametrize(
    "there", [OURS._replace(queue=2), OURS._replace(match=None, queue=None, other="action -1")]
)
def test_what_somebody_did_to_our_rule_is_let_be(there: Filter) -> None:
    known = steered(NIC)
    (manual,) = audit.check_filters(NIC, [there], known, 3 * S)
    assert manual.state is FlowState.MANUAL


def test_a_refused_rewrite_that_left_the_rule() -> None:
    known = steered(NIC)
    (move,) = steer.seen(seen(1, 2), NIC, RULE, known, 2 * S)
    audit.record(Outcome(move, 2 * S, errno.EIO, 7, "still there"), known)
    found = entry(known)
    assert (found.state, found.location, found.target_queue) == (FlowState.STEERED, 7, 1)


def test_an_earlier_runs_rule_stays_on_a_queue_whose_cpu_went_offline() -> None:
    """The kernel lets that queue run on several."""
    known = memory()
    known.cpus = {n: Cpu(n, n != 1, 0, 0, n, (n,), (n,)) for n in (1, 2, 3)}
    nic = replace(NIC, queues=tuple(replace(each, cpu=None) for each in NIC.queues))
    [flow_of], plan = audit.adopt(nic, [OURS], {Match.of(key(1)): USE}, known, S)
    assert plan == ()
    assert (flow_of.location, flow_of.target_queue, flow_of.target_cpu) == (7, 1, None)
    assert flow_of.app_cpu == 2


@pytest.mark.parametrize("why", ["no socket", "no queue", "no room"])
def test_an_earlier_runs_rule_that_cannot_be_kept_is_deleted(why: str) -> None:
    known = memory()
    if why == "no room":
        known.table.capacity = 0
    sockets = {} if why == "no socket" else {Match.of(key(1)): USE}
    rule = OURS._replace(queue=9) if why == "no queue" else OURS
    adopted, [delete] = audit.adopt(NIC, [rule], sockets, known, S)
    assert (adopted, known.table.get(key(1))) == ([], None)
    assert (delete.kind, delete.location, delete.old) == (ActionKind.DELETE, 7, rule.queue)
    assert not delete.live


@pytest.mark.parametrize("manual", [True, False])
def test_a_setting_that_another_program_changed_while_the_write_waited_is_not_written(
    manual: bool,
) -> None:
    known = memory()
    late = Action.of_setting("nic", "gro-flush-timeout:2", "0", Code.KERNEL("asked for"))
    follow = Action(
        ActionKind.QUEUE_CPU, "nic", None, None, 0, 1, Code.KERNEL("its owner"), "rest", 2
    )
    for waits, setting in ((late, "gro-flush-timeout:2"), (follow, "queue-cpu:2")):
        theirs = frozenset({setting} if manual else ())
        known.nics["nic"].view = replace(known.nics["nic"].view, manual=theirs)
        outcome = audit.outlived(waits, known, S)
        assert (outcome and outcome.errno) == (errno.ESTALE if manual else None)


def test_a_full_table_forgets_only_as_many_idle_flows_as_make_it_less_full() -> None:
    """T_delete grows as the table empties: one audit does not forget them all."""
    known = memory_of(FlowTable(100), one_rule(100, S))
    for number in range(100):
        known.table.put(flow(number, used_ns=99 * S + S // 2))
    uses = [SocketUse(1000 + number, key(number), 1, 101, 1, 0) for number in range(100)]
    audit.check_sockets(uses, {"nic": NIC}, known, 100 * S)
    left = len(known.table)
    rests_ns = [t_delete_in_force_ns(S, count, 100) for count in (left, left + 1)]
    assert rests_ns[1] < S // 2 <= rests_ns[0]
