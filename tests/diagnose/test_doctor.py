# SPDX-License-Identifier: GPL-2.0-or-later
"""What the doctor finds, from values alone."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.diagnose.doctor import examine
from atfnd.model import (
    Actuator,
    Caps,
    Conflict,
    Device,
    Filter,
    Finding,
    Level,
    Machine,
    Match,
    NicView,
    Queue,
    Rival,
    Rss,
    ServeOn,
    SteeringMethod,
)
from atfnd.model.nic import RFS_TABLE, RSS_KEY
from atfnd.model.reason import Code
from tests.serve.published import key, topology
from tests.values import NIC

HARDWARE = replace(
    NIC,
    name="eth0",
    queues=tuple(Queue(n, 100 + n, 40 + n, n, False, None) for n in range(8)),
    caps=replace(NIC.caps, driver="ixgbe"),
    device=Device("ixgbe", channels=8, channels_max=16, node=0),
)
PATIENT = Machine()
IN_THE_WAY = {Level.WARNING, Level.BLOCKER}


def found(nic: NicView, machine: Machine = PATIENT, *, watched: bool = True) -> list[Finding]:
    return list(examine(nic, topology(), machine, watched=watched))


def about(words: str, nic: NicView, machine: Machine = PATIENT) -> Finding:
    (finding,) = [each for each in found(nic, machine) if words in each.what]
    return finding


def test_a_nic_in_good_health() -> None:
    threads = tuple(replace(q, threaded=True, pid=900 + q.index) for q in HARDWARE.queues)
    device = replace(HARDWARE.device, node=None)
    findings = found(replace(HARDWARE, device=device, queues=threads))
    *good, noted = findings
    assert {each.level for each in good} == {Level.OK}
    assert noted.level is Level.NOTE
    assert "queues 0-7 are polled by NAPI threads" in noted.what
    assert "echo 0 > /sys/class/net/eth0/threaded" in (noted.advice or "")
    assert [each.what for each in good] == [
        "steers each flow by a filter of its own",
        "moving a flow is one write (K1)",
        "0 of 4096 filter slots used, 0 by us, 4096 free",
        "RSS spreads over 4 queues; its table of 128 can be written",
        "RSS hash of IPv4 TCP, IPv6 TCP, IPv4 UDP, IPv6 UDP: Toeplitz (known of ixgbe)",
        "8 queues are delivered on CPUs 0-7",
    ]
    own = replace(HARDWARE, rss=Rss(bytes(40), (0, 1), another="gve has a hash of its own"))
    [unknown] = [each for each in found(own) if "RSS hash" in each.what]
    assert unknown.level is Level.NOTE
    assert "not known, gve has a hash of its own. A move of such a flow waits" in unknown.what


def test_a_queue_without_a_thread_moves_no_established_flow() -> None:
    finding = about("polled in softirq: strict order", HARDWARE)
    assert finding.level is Level.NOTE
    assert finding.what.startswith("queues 0-7 are")
    assert finding.advice is not None
    assert "if applications are pinned: echo 1 > /sys/class/net/eth0/threaded" in finding.advice
    for other in (
        replace(HARDWARE, method=SteeringMethod.RSS),
        replace(HARDWARE, queues=tuple(replace(q, threaded=None) for q in HARDWARE.queues)),
    ):
        assert not [each for each in found(other) if "in softirq" in each.what]


def test_a_queue_that_borrows_a_thread_needs_nothing() -> None:
    nic = replace(HARDWARE, settings={"threaded": "0"})
    lent = replace(nic.queues[3], threaded=True, pid=77, borrowed=True)
    for each in (nic, replace(nic, queues=(*nic.queues[:3], lent, *nic.queues[4:]))):
        finding = about("NAPI threads that are borrowed", each)
        assert (finding.level, finding.advice) == (Level.OK, None)
        assert finding.what.startswith("queues 0-7 are polled in softirq")
        assert not [other for other in found(each) if "polled by NAPI threads" in other.what]
    for changes in ({"borrows": False}, {"manual": frozenset({"threaded"})}):
        finding = about("polled in softirq: strict order", replace(nic, **changes))
        assert finding.level is Level.NOTE
        assert ("napi_threads: never" in finding.what) is ("borrows" in changes)


def test_rfs_that_a_script_set_up() -> None:
    """What becomes of it is reported before it is armed. Armed, it may be atfnd's own."""
    on = {RFS_TABLE: "32768", "rps-flow-cnt:0": "4096"}
    nic = replace(HARDWARE, armed=False, settings=on, keeps_rfs=True)
    off = replace(nic, keeps_rfs=False)
    for each, effect in (
        (nic, "it stays on queues that no thread owns"),
        (off, "it is switched off, until restore"),
        (replace(off, unowned_rfs=True), "it stays on queues that no thread owns"),
        (replace(nic, manual=frozenset({RFS_TABLE})), "it is switched off, until restore"),
        (replace(nic, method=SteeringMethod.RSS), "it is switched off, until restore"),
        (replace(off, method=SteeringMethod.RFS), "it stays"),
        (replace(off, method=SteeringMethod.NONE), "it stays"),
    ):
        finding = about("RFS is set up here", each)
        assert finding.level is Level.NOTE
        assert finding.what == f"RFS is set up here: when eth0 is armed, {effect}"
        assert "in a pause" in (finding.advice or "")
    arfs = replace(nic, caps=replace(nic.caps, arfs=True))
    for each in (
        replace(nic, armed=True),
        replace(nic, settings=on | {RFS_TABLE: "0"}),
        replace(nic, settings=on | {"rps-flow-cnt:0": "0"}),
        arfs,
    ):
        assert not [finding for finding in found(each) if "RFS is set up" in finding.what]


def test_more_queues_in_the_words_that_the_driver_takes() -> None:
    few = replace(HARDWARE, queues=HARDWARE.queues[:2])
    for apart, command in ((False, "ethtool -L eth0 combined 16"), (True, "ethtool -L eth0 rx 16")):
        device = replace(few.device, channels=2, channels_apart=apart)
        advice = [each.advice for each in found(replace(few, device=device))]
        assert command in advice


def test_rfs_that_the_policy_asks_for_and_the_nic_refuses() -> None:
    nic = replace(HARDWARE, unowned_rfs=True)
    table = {RFS_TABLE: "0"}
    for changes, why in (
        ({}, "the kernel offers no RFS here"),
        ({"settings": table, "manual": frozenset(table)}, "another program changed rps-sock"),
        (
            {"settings": table, "caps": replace(nic.caps, arfs=True)},
            "filters of its own (aRFS) while ntuple is on",
        ),
    ):
        finding = about("left to RSS, because no queue can have RFS", replace(nic, **changes))
        assert finding.level is Level.NOTE
        assert why in finding.what
    for each in (HARDWARE, replace(nic, settings=table)):
        assert not [finding for finding in found(each) if "no queue can have RFS" in finding.what]


def test_a_symmetric_hash_that_the_nic_cannot_have() -> None:
    asked, said = replace(HARDWARE, symmetric_hash=True), "rss_hash: symmetric is not in force"
    finding = about(said, asked)
    assert (finding.level, finding.advice) == (Level.NOTE, None)
    for each in (HARDWARE, replace(asked, settings={RSS_KEY: "6d5a" * 20})):
        assert not [finding for finding in found(each) if said in finding.what]


def test_queues_that_can_borrow_no_thread_get_no_rfs() -> None:
    nic = replace(HARDWARE, unowned_rfs=True, settings={RFS_TABLE: "0", "threaded": "0"})
    said, softirq = "RFS is not switched on for them", "polled in softirq"
    assert said in about(softirq, replace(nic, borrows=False)).what
    for each in (nic, replace(nic, borrows=False, unowned_rfs=False)):
        assert said not in about(softirq, each).what


def received(polls: str, timeout_ns: str, **changes: object) -> NicView:
    """With these values of the whole interface."""
    settings = {"defer-hard-irqs": polls, "gro-flush-timeout": timeout_ns}
    return replace(HARDWARE, settings=settings, **changes)  # type: ignore[arg-type]


def test_what_defers_interrupts_and_has_no_effect() -> None:
    alone = about("gro_flush_timeout is 0", received("10", "0"))
    assert (alone.level, "napi_defer_hard_irqs" in (alone.advice or "")) == (Level.NOTE, True)
    holding = about("holding packets in GRO", received("0", "50000"))
    assert holding.level is Level.WARNING
    assert "echo 0 > /sys/class/net/eth0/gro_flush_timeout" in (holding.advice or "")
    for both in (received("10", "50000"), received("0", "0")):
        assert not [each for each in found(both) if "defer" in each.what or "GRO" in each.what]


def test_a_long_deferral_without_a_thread_keeps_a_queue_where_it_is() -> None:
    late = about("deferring interrupts by more than 12.5 ms", received("10", "20000000"))
    assert late.level is Level.NOTE
    threads = tuple(replace(q, threaded=True, pid=900 + q.index) for q in HARDWARE.queues)
    with_threads = received("10", "20000000", queues=threads)
    assert not [each for each in found(with_threads) if "deferring" in each.what]


def without_rules(**changes: object) -> NicView:
    caps = replace(HARDWARE.caps, filters=False, filter_slots=None, **changes)  # type: ignore[arg-type]
    return replace(
        HARDWARE, caps=caps, method=SteeringMethod.RSS, method_why=Code.KERNEL("no filters")
    )


def test_a_nic_that_never_has_filters_is_served_by_other_means() -> None:
    nic = without_rules(driver="virtio_net", actuator=Actuator.NONE)
    assert about("indirection table of RSS", nic).what.endswith(": no filters")
    assert not [each for each in found(nic) if each.level in IN_THE_WAY]


def test_a_gate_says_how_to_open_it() -> None:
    nic = without_rules(why="ntuple is off")
    nic = replace(nic, device=replace(nic.device, ntuple=False))
    finding = about("it takes no filters now: ntuple is off", nic)
    assert finding.level is Level.WARNING
    assert finding.advice is not None
    assert finding.advice.startswith("ethtool -K eth0 ntuple on")
    nic = replace(nic, device=replace(nic.device, ntuple_fixed=True))
    assert about("it takes no filters now: ntuple is off", nic).advice is None


def test_no_means_at_all_is_a_blocker() -> None:
    finding = found(replace(without_rules(), method=SteeringMethod.NONE))[0]
    assert finding.level is Level.BLOCKER
    assert "nothing can be steered here: no filters" in finding.what


def test_conflicts_keep_their_weight() -> None:
    conflicts = Conflict("aRFS is on", "turn it off", False), Conflict("XSK", "end it", True)
    nic = replace(HARDWARE, conflicts=conflicts)
    assert about("aRFS is on", nic) == Finding("eth0", Level.WARNING, "aRFS is on", "turn it off")
    assert about("XSK", nic).level is Level.BLOCKER
    blocked = found(
        replace(nic, method=SteeringMethod.NONE, method_why=Code.KERNEL("XSK: nothing is steered"))
    )
    assert len([f for f in blocked if f.level is Level.BLOCKER]) == 1


def test_a_pause_is_no_blocker() -> None:
    paused = replace(
        HARDWARE,
        armed=False,
        paused=True,
        method=SteeringMethod.NONE,
        method_why=Code.KERNEL("paused"),
    )
    assert not [f for f in found(paused) if f.level in IN_THE_WAY]


def test_the_finding_on_an_unwatched_nic_says_how_to_watch_it() -> None:
    findings = found(replace(HARDWARE, armed=False), watched=False)
    assert [f for f in findings if f.advice == "start atfnd with --nic eth0 as well"]
    assert not [f for f in findings if "not armed" in f.what]


def rules(count: int) -> tuple[Filter, ...]:
    return tuple(Filter(n, Match.of(key(n)), 0) for n in range(count))


def test_capacity() -> None:
    caps = replace(HARDWARE.caps, filter_slots=10)
    full = replace(HARDWARE, filters=rules(9), owned=frozenset(range(6)), caps=caps)
    finding = about("9 of 10 filter slots used, 6 by us, 1 free", full)
    assert finding.level is Level.WARNING
    assert "min_rate" in (finding.advice or "")
    assert about("3 filters in it are not ours", full).level is Level.NOTE
    theirs = replace(full, owned=frozenset())
    assert about("by us, 1 free", theirs).advice == "they are not ours: ethtool -n eth0 lists them"
    roomy = replace(full, caps=replace(caps, filter_slots=100))
    assert about("9 of 100", roomy).level is Level.OK
    silent = replace(full, caps=replace(caps, filter_slots=None))
    assert about("it does not say how many it can hold", silent).level is Level.OK
    spent = replace(roomy, budget=6)
    assert about("our share of 6 filters is used up", spent).level is Level.WARNING


def on(*cpus: int | None) -> NicView:
    queues = tuple(replace(HARDWARE.queues[0], index=n, cpu=cpu) for n, cpu in enumerate(cpus))
    return replace(HARDWARE, queues=queues)


def test_queues_and_cpus() -> None:
    pin = "echo CPU > /proc/irq/40/smp_affinity_list (queue 2)"
    loose = about("queue 2 is not confined to one CPU", on(0, 1, None))
    assert (loose.level, loose.advice) == (Level.WARNING, pin)
    unknown = on(0, 1, None)
    last = replace(unknown.queues[2], irq=None)
    unknown = replace(unknown, queues=(*unknown.queues[:2], last))
    unsaid = about("queue 2 is served by an interrupt that is not known: no flow", unknown)
    assert "by queue, atfnd run finds out" in (unsaid.advice or "")
    unmovable = replace(unknown, caps=replace(unknown.caps, queue_cpu=False))
    assert about("an interrupt that is not known", unmovable).advice == unsaid.advice
    crowd = about("queues 0,2 are sharing CPUs, while CPUs 0,2,4-7 have no queue", on(3, 1, 3))
    assert crowd.level is Level.WARNING
    assert "CPUs 2-7 have no queue" in about("have no queue", on(0, 1)).what
    assert about("have no queue", on(0, 1)).advice == "ethtool -L eth0 combined 16"
    everywhere = on(*range(8), 0, 1)  # more queues than CPUs: sharing is all that is left
    assert not [f for f in found(everywhere) if "sharing" in f.what]


def test_a_queue_that_follows_its_owner_is_no_reason_to_move_one() -> None:
    """Queue 2 of CPU 2 follows a thread to CPU 1, and goes back."""
    followed = replace(on(0, 1, 1, *range(3, 8)), homes={2: 2}, owners={2: "thread 7"})
    assert about("queues of CPUs 2 follow their owners", followed).level is Level.OK
    said = [f"{each.what} {each.advice}" for each in found(followed)]
    assert not [each for each in said if "have no queue" in each or "sharing" in each]


def test_queues_on_cpus_that_are_off_or_isolated() -> None:
    cpus = topology().cpus
    changed = replace(
        topology(),
        cpus=(
            *cpus[:2],
            replace(cpus[2], online=False),
            replace(cpus[3], isolated=True),
            *cpus[4:],
        ),
    )
    findings = {f.what: f for f in examine(HARDWARE, changed, PATIENT)}
    assert findings["queue 2 is on an offline CPU"].level is Level.WARNING
    isolated = "queue 3 is on isolated CPUs, which the packets disturb"
    assert findings[isolated].level is Level.WARNING


def test_where_the_policy_serves_no_queue() -> None:
    """Queues elsewhere are named; CPUs without a queue that may have none are no news."""
    armed = replace(HARDWARE, armed=True, serve_on=ServeOn(frozenset({0, 5})))
    outside = about("queues 0,5 are on CPUs where the policy serves no queue", armed)
    assert (outside.level, "serve_on !0,5" in outside.what) == (Level.WARNING, True)
    assert not [f for f in found(replace(armed, armed=False)) if "serves no queue" in f.what]
    few = replace(on(0, 1), serve_on=ServeOn(frozenset({0, 1, 2}), False))
    assert "CPUs 2 have no queue" in about("have no queue", few).what


def able(**changes: object) -> NicView:
    return replace(HARDWARE, caps=replace(HARDWARE.caps, **changes))  # type: ignore[arg-type]


ALLOWED = {"queue-cpu:0": "0-7", "queue-cpu:1": "1", "queue-cpu:5": "4,5"}
UNPROVEN = able(probed=False, why="ntuple was turned on")
ONLY_IPV4 = able(flow_types=frozenset({(4, 6), (4, 17)}), prefix_masks=False)
MOVED = replace(HARDWARE, manual=frozenset({"rss", "queue-cpu:3"}))
UNRECEIVED = replace(HARDWARE, not_received={2: "busy: its NAPI cannot have a thread"})


@pytest.mark.parametrize(
    ("nic", "level", "words", "advice"),
    [
        (able(actuator=Actuator.IN_PLACE), Level.OK, "one write (K1)", ""),
        (able(actuator=Actuator.SHORT_GAP), Level.OK, "microseconds meanwhile (K2)", ""),
        (able(actuator=Actuator.LONG_GAP), Level.OK, "100 microseconds or more meanwhile (K3)", ""),
        (UNPROVEN, Level.NOTE, "expected to do", ""),
        (UNPROVEN, Level.NOTE, "ntuple was turned on", ""),
        (ONLY_IPV4, Level.NOTE, "TCP over IPv4, UDP over IPv4 only", ""),
        (ONLY_IPV4, Level.NOTE, "exact 5-tuples only", ""),
        (HARDWARE, Level.NOTE, "NUMA node 0, queues 4-7 are on another", ""),
        (UNRECEIVED, Level.WARNING, "queue 2 is not received as the policy asks", ""),
        (replace(HARDWARE, settings=ALLOWED), Level.NOTE,
         "queues 0,5 are allowed on several CPUs", ""),
        (on(), Level.WARNING, "names no receive queue", ""),
        (on(0), Level.OK, "1 queue is delivered on CPUs 0", ""),
        (MOVED, Level.WARNING, "another program changed queue-cpu:3, rss after atfnd",
         "to take it back: atfnctl resume eth0"),
        (replace(HARDWARE, up=False), Level.BLOCKER, "down", "bring eth0 up"),
        (replace(HARDWARE, armed=False), Level.NOTE, "not armed", "atfnctl arm eth0"),
        (replace(HARDWARE, armed=False, paused=True), Level.NOTE, "pause", "atfnctl resume eth0"),
    ],
    ids=range(16),
)  # fmt: skip
def test_what_a_nic_can_do_and_how_it_stands(
    nic: NicView, level: Level, words: str, advice: str
) -> None:
    finding = about(words, nic)
    assert finding.level is level
    assert not advice or finding.advice == advice


CAPS = st.builds(
    Caps, st.just("x"), st.booleans(), st.none() | st.integers(0, 20), st.booleans(),
    st.booleans(), st.booleans(), st.booleans(), st.sampled_from(Actuator),
    st.none() | st.frozensets(st.tuples(st.sampled_from([4, 6]), st.sampled_from([6, 17, 132]))),
    st.booleans(), st.none() | st.just("why"),
)  # fmt: skip
QUEUES = st.lists(
    st.builds(
        Queue, st.integers(0, 7), st.none() | st.integers(1, 9), st.none() | st.integers(1, 99),
        st.none() | st.integers(0, 9), st.none() | st.booleans(), st.none() | st.integers(1, 9),
    ),
    max_size=8,
    unique_by=lambda queue: queue.index,
)  # fmt: skip


@given(
    CAPS, QUEUES, st.sampled_from(SteeringMethod), st.integers(0, 25), st.integers(0, 25),
    st.booleans(), st.none() | st.integers(0, 1), st.frozensets(st.integers(1, 99)),
)  # fmt: skip
def test_whatever_a_nic_is_the_finding_is_true(
    caps: Caps, queues: list[Queue], method: SteeringMethod, used: int, ours: int, up: bool,
    node: int | None, banned: frozenset[int],
) -> None:  # fmt: skip
    nic = replace(
        HARDWARE, caps=caps, queues=tuple(queues), method=method, filters=rules(used), up=up,
        owned=frozenset(range(min(used, ours))), device=Device(node=node),
    )  # fmt: skip
    findings = found(nic, Machine(rivals=(Rival("irqbalance", 7, banned),)))
    blockers = [each for each in findings if each.level is Level.BLOCKER]
    assert len(blockers) == (method is SteeringMethod.NONE) + (not up)
    assert all(each.nic == nic.name and each.what for each in findings)
    assert len({each.what for each in findings}) == len(findings)
    irqs = {queue.irq for queue in queues} - {None}
    moved = [each for each in findings if "irqbalance" in each.what and each.level in IN_THE_WAY]
    assert bool(moved) == bool(irqs - banned)


@given(st.sampled_from(["$(reboot)", "a;b", "it's", "`x`", "eth0&", "a|b", ">x", "*"]), st.data())
def test_no_name_is_a_command_of_its_own(name: str, data: st.DataObject) -> None:
    """An interface may be called so, and its advice is pasted into root's shell."""
    nic = data.draw(st.sampled_from([
        replace(NIC, name=name, armed=False),
        replace(NIC, name=name, armed=False, paused=True),
        replace(NIC, name=name, up=False),
        replace(NIC, name=name, device=Device(channels=1, channels_max=8), queues=NIC.queues[:1]),
        replace(NIC, name=name, queues=tuple(replace(q, threaded=False) for q in NIC.queues)),
        replace(NIC, name=name, manual=frozenset({"rss"})),
    ]))  # fmt: skip
    for finding in examine(nic, topology(), Machine()):
        if finding.advice is not None and name in finding.advice:
            rest = finding.advice.replace(shlex.quote(name), "").replace(f"bring {name} up", "")
            assert name not in rest
