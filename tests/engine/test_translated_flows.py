# SPDX-License-Identifier: GPL-2.0-or-later
"""Which translated flows get filters, and where these lead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from atfnd.engine import audit
from atfnd.engine.command import Begin, Log
from atfnd.engine.engine import Engine
from atfnd.engine.event import (
    FiltersLeft,
    NicAttached,
    PolicyLoaded,
    SocketsAudited,
    TranslatedLooked,
)
from atfnd.engine.forwarding import translated
from atfnd.engine.forwarding.translations import Translations
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, NicMemory, RulesInForce
from atfnd.model import (
    TRANSLATED,
    Action,
    ActionKind,
    Filter,
    FlowKey,
    FlowState,
    ForwardingRule,
    Match,
    Mode,
    NicView,
    Outcome,
    PairPlacement,
    Placement,
    Plan,
    Policy,
    Protocol,
    Rss,
    TranslatedFlow,
    Translation,
)
from atfnd.model.rss_hash import rss_index
from atfnd.model.toeplitz import MICROSOFT_KEY
from tests.values import NIC, RULE, flow

__all__: list[str] = []

S = 1_000_000_000
RSS = Rss(MICROSOFT_KEY, (0, 1, 2, 3) * 32)
LAN, WAN = (replace(NIC, name=name, ifindex=i, rss=RSS) for i, name in enumerate(("lan", "wan")))
GATEWAY = ForwardingRule(
    "gateway", "test:1", ("lan",), ("wan",), False, PairPlacement.LEAVE, Mode.BOUNDED, 4
)
FAST = 1_000_000.0


def memory(*rules: ForwardingRule, lan: NicView = LAN, wan: NicView = WAN) -> Memory:
    flows = {"rest": replace(RULE, order=Mode.BOUNDED)}
    in_force = RulesInForce(0, 30 * S, flows, forwarding=rules or (GATEWAY,))
    return Memory(FlowTable(100), in_force, {"lan": NicMemory(lan), "wan": NicMemory(wan)})


def cpu_by_rss(nic: NicView, key: FlowKey) -> int | None:
    return rss_index(nic, key)  # queue i is delivered on CPU i


def tuples(number: int) -> tuple[FlowKey, FlowKey]:
    client, service, ours = b"\x0a\0\0\1", b"\x08\x08\x08\x08", b"\xc0\0\2\1"
    original = FlowKey(Protocol.TCP, service, 443, client, number)
    return original, FlowKey(Protocol.TCP, ours, number, service, 443)


def some(count: int, apart: bool = True) -> list[tuple[FlowKey, FlowKey]]:
    """Flows of which RSS brings both directions to different CPUs, or to one."""
    every = (tuples(number) for number in range(1, 10_000))
    fit = (
        each for each in every if (cpu_by_rss(LAN, each[0]) != cpu_by_rss(WAN, each[1])) is apart
    )
    return [next(fit) for _ in range(count)]


def going(
    keys: tuple[FlowKey, FlowKey], bytes_per_s: float | None = FAST, *, up: int = 9, down: int = 1,
    **changes: Any,
) -> Translation:  # fmt: skip
    """It carries `up` to `down` bytes."""
    flow = TranslatedFlow(*keys, up * 1_000_000, down * 1_000_000)
    return Translation(flow, "lan", "wan", bytes_per_s)._replace(**changes)


def written(plan: Plan, known: Memory, at_ns: int = 1) -> None:
    for number, action in enumerate(plan):
        at = number if action.location is None else action.location
        audit.record(Outcome(action, at_ns, 0, at, ""), known)


def look(known: Memory, *found: Translation, now_ns: int = S, **changes: Any) -> Plan:
    """Those that are steered are as they were, but for `changes`."""
    held = known.translations.held
    now = {cookie: each.now._replace(**changes) for cookie, each in held.items()}
    plan = translated.look(now, found, known, now_ns)
    written(plan, known, now_ns)
    return plan


def what(plan: Plan) -> list[tuple[ActionKind, str, FlowKey | None, int | None]]:
    return [(each.kind, each.nic, each.key, each.new) for each in plan]


def test_the_direction_that_carries_less_comes_to_the_cpu_of_the_other_one() -> None:
    (keys,) = some(1)
    known = memory()
    cpu = cpu_by_rss(LAN, keys[0])
    assert what(look(known, going(keys))) == [(ActionKind.INSERT, "wan", keys[1], cpu)]
    down = memory()
    cpu = cpu_by_rss(WAN, keys[1])
    plan = look(down, going(keys, up=1, down=9))
    assert what(plan) == [(ActionKind.INSERT, "lan", keys[0], cpu)]


def test_what_rss_brings_together_needs_no_filter() -> None:
    (keys,) = some(1, apart=False)
    known = memory()
    assert look(known, going(keys)) == ()
    assert len(known.table) == 0
    assert not known.translations.held


def test_where_rss_is_not_known_both_get_a_filter_to_one_cpu() -> None:
    (keys,) = some(1)
    known = memory(lan=replace(LAN, rss=None), wan=replace(WAN, rss=None))
    first, second = look(known, going(keys))
    assert {first.key, second.key} == {*keys}
    assert (first.nic, second.nic) == ("lan", "wan")
    assert first.new == second.new


def test_both_directions_of_a_router_on_a_stick_come_by_one_nic() -> None:
    rule = replace(GATEWAY, egress=("lan",))
    (keys,) = some(1)
    plan = look(memory(rule), going(keys, egress="lan"))
    assert [(each.nic, each.key) for each in plan] == [("lan", keys[1])]


def test_those_that_carry_most_get_the_filters_of_their_rule() -> None:
    keys = some(8)
    known = memory()
    plan = look(known, *(going(each, FAST * rank) for rank, each in enumerate(keys, 1)))
    assert {each.key for each in plan} == {reply for _, reply in keys[4:]}


def test_a_flow_that_carries_little_gets_none() -> None:
    (keys,) = some(1)
    assert look(memory(), going(keys, 99_999)) == ()
    assert look(memory(), going(keys, None)) == ()


def test_filters_are_given_to_others_only_if_these_carry_clearly_more() -> None:
    old, new = some(2)
    known = memory(replace(GATEWAY, translated_max=1))
    look(known, going(old))
    assert look(known, going(new, 2.1 * FAST), now_ns=2 * S) == ()  # it has just got its filter
    assert look(known, going(new, 1.9 * FAST), now_ns=10 * S) == ()
    (gone,) = look(known, going(new, 2.1 * FAST), now_ns=10 * S)
    assert (gone.kind, gone.key, gone.live) == (ActionKind.DELETE, old[1], True)
    (comes,) = look(known, going(new, 2.1 * FAST), now_ns=11 * S)  # the bound holds in between
    assert (comes.kind, comes.key) == (ActionKind.INSERT, new[1])


def test_its_filters_stay_while_its_rate_is_not_known() -> None:
    old, new = some(2)
    known = memory(replace(GATEWAY, translated_max=1))
    look(known, going(old))
    assert look(known, going(new, 99 * FAST), now_ns=10 * S, bytes_per_s=None) == ()


def test_one_that_is_steered_counts_once() -> None:
    old, new = some(2)
    known = memory(replace(GATEWAY, translated_max=2))
    look(known, going(old))
    (action,) = look(known, going(old, 9 * FAST), going(new), now_ns=2 * S)
    assert action.key == new[1]


def test_no_flow_gets_one_filter_where_it_needs_two() -> None:
    first, second = some(2)
    rule = replace(GATEWAY, translated_max=3)
    known = memory(rule, lan=replace(LAN, rss=None), wan=replace(WAN, rss=None))
    plan = look(known, going(first), going(second))
    assert {each.key for each in plan} in ({*first}, {*second})


def test_both_filters_lead_elsewhere_when_a_nic_serves_their_cpu_no_more() -> None:
    (keys,) = some(1)
    known = memory(lan=replace(LAN, rss=None), wan=replace(WAN, rss=None))
    look(known, going(keys))
    queues = tuple(replace(q, cpu=9) if q.cpu == 0 else q for q in LAN.queues)
    known.nics["lan"].view = replace(LAN, rss=None, queues=queues)
    first, second = look(known, now_ns=10 * S)
    assert (first.kind, second.kind) == (ActionKind.REWRITE, ActionKind.REWRITE)
    assert first.new == second.new != 0


def test_an_idle_flow_whose_entries_have_ended_gets_no_new_ones() -> None:
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    known.table.remove(keys[1])
    assert look(known, now_ns=10 * S, bytes_per_s=1.0) == ()
    assert not known.translations.held


def test_its_filters_go_with_its_connection() -> None:
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    (cookie,) = known.translations.held
    plan = translated.look({cookie: None}, (), known, 2 * S)
    assert [(each.kind, each.key, each.live) for each in plan] == [
        (ActionKind.DELETE, keys[1], False)
    ]
    written(plan, known)
    assert translated.look({cookie: None}, (), known, 3 * S) == ()
    assert (len(known.table), known.translations.held) == (0, {})


@pytest.mark.parametrize(
    "changes",
    [{"egress": None}, {"ingress": None}, {"egress": "dmz"}, {"ingress": "wan", "egress": "wan"}],
)
def test_both_directions_must_come_by_nics_of_a_rule(changes: dict[str, Any]) -> None:
    (keys,) = some(1)
    assert look(memory(), going(keys, **changes)) == ()


def test_a_rule_without_filters_for_them_gives_them_none() -> None:
    (keys,) = some(1)
    assert look(memory(replace(GATEWAY, translated_max=None)), going(keys)) == ()


def test_a_rule_is_for_what_is_opened_from_the_other_side_unless_it_is_one_way() -> None:
    (keys,) = some(1)
    back = going(keys, ingress="wan", egress="lan")
    assert look(memory(), back)
    assert look(memory(replace(GATEWAY, one_way=True)), back) == ()


@pytest.mark.parametrize("changes", [{"armed": False}, {"up": False}])
def test_nothing_is_written_where_one_end_cannot_take_it(changes: dict[str, Any]) -> None:
    (keys,) = some(1)
    assert look(memory(lan=replace(LAN, **changes)), going(keys)) == ()


def test_a_link_that_is_down_for_a_moment_takes_no_filter_away() -> None:
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    known.nics["lan"].view = replace(LAN, up=False)
    assert look(known, now_ns=10 * S) == ()
    known.nics["lan"].view = LAN
    assert look(known, now_ns=11 * S) == ()
    assert len(known.table) == 1


def test_what_comes_by_a_nic_that_is_gone_ends() -> None:
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    del known.nics["lan"]
    (action,) = look(known, now_ns=10 * S, ingress=None)
    assert (action.kind, action.key) == (ActionKind.DELETE, keys[1])


def test_sockets_come_first_where_filters_are_short() -> None:
    (keys,) = some(1)
    known = memory(wan=replace(WAN, budget=1))
    socket = flow(1, nic="wan", state=FlowState.STEERED, location=9, target_queue=0)
    known.table.put(socket)
    assert look(known, going(keys)) == ()
    assert known.table.waiting("wan") == []  # it does not even wait for that one
    assert known.table.get(socket.key) == socket


def test_a_flow_whose_filter_went_to_a_socket_does_not_wait_for_another() -> None:
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    taken = known.table.get(keys[1])
    assert taken is not None
    known.table.put(taken._replace(state=FlowState.OVERFLOW, location=None, target_queue=None))
    known.nics["wan"].view = replace(WAN, budget=0)
    assert look(known, now_ns=2 * S) == ()
    assert (len(known.table), known.translations.held) == (0, {})


def test_strict_moves_only_what_keeps_its_tx_queue() -> None:
    (keys,) = some(1)
    strict = replace(GATEWAY, order=Mode.STRICT)
    known = memory(strict)
    assert look(known, going(keys)) == ()
    assert known.translations.held_back == {"gateway": "lan"}
    one = memory(strict, lan=replace(LAN, queues=LAN.queues[3:], rss=None))
    (action,) = look(one, going(keys))  # the answers leave by that one channel
    assert (action.nic, action.key, action.new) == ("wan", keys[1], 3)


def test_it_comes_along_when_its_cpu_is_another() -> None:
    """The queue that the other direction comes by is delivered elsewhere now."""
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    cpu = cpu_by_rss(LAN, keys[0])
    assert cpu is not None
    swapped = {cpu: (cpu + 1) % 4, (cpu + 1) % 4: cpu}
    queues = tuple(replace(q, cpu=swapped.get(q.index, q.index)) for q in LAN.queues)
    known.nics["lan"].view = replace(LAN, queues=queues)
    (action,) = look(known, now_ns=10 * S)
    assert (action.kind, action.key, action.new) == (ActionKind.REWRITE, keys[1], (cpu + 1) % 4)


def test_a_filter_that_another_program_changed_is_left_alone() -> None:
    (keys,) = some(1)
    known = memory()
    look(known, going(keys))
    entry = known.table.get(keys[1])
    assert entry is not None
    known.table.put(entry._replace(state=FlowState.MANUAL, location=None, target_queue=None))
    assert look(known, now_ns=10 * S) == ()


def test_the_key_of_a_socket_stays_the_sockets() -> None:
    (keys,) = some(1)
    known = memory()
    socket = flow(1, key=keys[1], nic="wan")
    known.table.put(socket)
    assert look(known, going(keys)) == ()
    assert known.table.get(keys[1]) == socket


def test_no_socket_has_its_cookie_and_both_directions_have_one() -> None:
    (keys,) = some(1)
    known = memory(lan=replace(LAN, rss=None), wan=replace(WAN, rss=None))
    look(known, going(keys))
    (cookie,) = known.translations.held
    assert cookie > TRANSLATED
    assert {each.key for each in known.table.of_cookie(cookie)} == {*keys}
    assert all(each.translated for each in known.table)
    assert not flow(1).translated
    assert not flow(1, cookie=2**64 - 1).translated


# ---- as the engine has it


def engine(known: Memory) -> Engine:
    made = Engine(known)
    for view in (LAN, WAN):
        made.handle(NicAttached(view, armed=True), 1)
        known.nics[view.name].view = view
    return made


def actions(commands: Any) -> list[Action]:
    begun = (each for each in commands if isinstance(each, Begin))
    return [wanted.action for each in begun for wanted in each.wanted]


def steered() -> tuple[Engine, FlowKey, int]:
    (keys,) = some(1)
    known = memory()
    made = engine(known)
    commands = made.handle(TranslatedLooked({}, [going(keys)]), S)
    (wanted,) = (w for each in commands if isinstance(each, Begin) for w in each.wanted)
    assert (wanted.onwards, wanted.mode) == (4, Mode.BOUNDED)
    written((wanted.action,), known, S)
    ((cookie, now),) = made.translated().items()
    assert now[:2] == keys
    return made, keys[1], cookie


def test_an_audit_ends_it_only_when_it_is_idle() -> None:
    made, key, cookie = steered()
    assert actions(made.handle(SocketsAudited(()), 20 * S)) == []
    held = made.memory.translations.held[cookie].now
    more = held._replace(flow=held.flow._replace(reply_bytes=5_000_000))
    made.handle(TranslatedLooked({cookie: more}, ()), 25 * S)
    assert actions(made.handle(SocketsAudited(()), 50 * S)) == []
    entry = made.memory.table.get(key)
    assert entry is not None
    assert entry.bytes == 5_000_000
    (action,) = actions(made.handle(SocketsAudited(()), 90 * S))
    assert (action.kind, action.key, action.live) == (ActionKind.DELETE, key, True)


def test_a_filter_of_an_earlier_run_is_taken_over_with_its_connection() -> None:
    first, second = some(2)
    known = memory()
    made = engine(known)
    left = [Filter(at, Match.of(keys[1]), 2) for at, keys in ((5, first), (6, second))]
    connection = TranslatedFlow(*first, 1, 1)
    (action,) = actions(made.handle(FiltersLeft("wan", left, (), [connection]), S))
    assert (action.kind, action.key) == (ActionKind.DELETE, second[1])  # it has ended
    (cookie,) = made.translated()
    look(known, now_ns=2 * S, ingress="lan", egress="wan")
    entry = known.table.get(first[1])
    assert entry is not None
    assert (entry.cookie, entry.rule_name) == (cookie, "forwarding gateway")


@pytest.mark.parametrize(("rules", "stays"), [((GATEWAY,), True), ((), False)])
def test_another_policy_judges_it_by_its_forwarding_rules(
    rules: tuple[ForwardingRule, ...], stays: bool
) -> None:
    made, key, _ = steered()
    assert made.flows_to_match() == []
    flows = (replace(RULE, placement=Placement.LEAVE),)
    policy = Policy((), flows, "auto", 100, 0, (), forwarding=rules)
    deleted = actions(made.handle(PolicyLoaded(policy, {}, frozenset()), 2 * S))
    assert [(each.kind, each.key) for each in deleted] == (
        [] if stays else [(ActionKind.DELETE, key)]
    )


def test_it_says_once_that_strict_holds_flows_back() -> None:
    (keys,) = some(1)
    known = memory(replace(GATEWAY, order=Mode.STRICT))
    made = engine(known)
    (said,) = made.handle(TranslatedLooked({}, [going(keys)]), S)
    assert isinstance(said, Log)
    assert said.why == "order strict, and packets would leave lan by another TX queue"
    assert made.handle(TranslatedLooked({}, [going(keys)]), 2 * S) == []


def test_one_that_is_not_steered_has_a_new_cookie_each_time() -> None:
    keys, others = some(2)
    known, flow = Translations(), TranslatedFlow(*keys, 1, 1)
    cookie = known.cookie(flow)
    assert known.cookie(flow) != cookie
    known.hold(cookie, Translation(flow, None, None, None), 1)
    assert known.cookie(flow._replace(reply_bytes=9)) == cookie
    assert known.cookie(TranslatedFlow(*others, 1, 1)) != cookie


def test_a_move_knows_how_many_tx_queues_its_packets_may_take() -> None:
    made, key, cookie = steered()
    known, entry = made.memory, made.memory.table.get(key)
    assert entry is not None
    known.nics["lan"].view = replace(LAN, queues=LAN.queues[:2])  # the answers go out there
    assert translated.onwards(entry, known) == 2
    other = entry._replace(key=known.translations.held[cookie].now.flow.original)
    assert translated.onwards(other, known) == 4
    assert translated.onwards(entry._replace(cookie=cookie + 1), known) == 0
    assert translated.onwards(flow(1), known) is translated.onwards(None, known) is None
