# SPDX-License-Identifier: GPL-2.0-or-later
"""What the doctor finds, from values alone."""

from __future__ import annotations

import itertools
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
THREADS = tuple(replace(q, threaded=True, pid=900 + q.index) for q in HARDWARE.queues)
PATIENT = Machine()
IN_THE_WAY = {Level.WARNING, Level.BLOCKER}


def found(nic: NicView, machine: Machine = PATIENT, *, watched: bool = True) -> list[Finding]:
    return list(examine(nic, topology(), machine, watched=watched))


def about(words: str, nic: NicView, machine: Machine = PATIENT) -> Finding:
    (finding,) = [each for each in found(nic, machine) if words in each.what]
    return finding


def test_a_nic_in_good_health() -> None:
    device = replace(HARDWARE.device, node=None)
    *good, noted = found(replace(HARDWARE, device=device, queues=THREADS))
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


def without_rules(**changes: object) -> NicView:
    caps = replace(HARDWARE.caps, filters=False, filter_slots=None, **changes)  # type: ignore[arg-type]
    return replace(
        HARDWARE, caps=caps, method=SteeringMethod.RSS, method_why=Code.KERNEL("no filters")
    )


def rules(count: int) -> tuple[Filter, ...]:
    return tuple(Filter(n, Match.of(key(n)), 0) for n in range(count))


def on(*cpus: int | None) -> NicView:
    """Its queues are delivered on these CPUs."""
    queues = tuple(replace(HARDWARE.queues[0], index=n, cpu=cpu) for n, cpu in enumerate(cpus))
    return replace(HARDWARE, queues=queues)


def able(**changes: object) -> NicView:
    return replace(HARDWARE, caps=replace(HARDWARE.caps, **changes))  # type: ignore[arg-type]


def having(**settings: str) -> NicView:
    """With these values; an underscore stands for a dash."""
    values = {name.replace("_", "-"): text for name, text in settings.items()}
    return replace(HARDWARE, settings=values)


OWN_HASH = replace(HARDWARE, rss=Rss(bytes(40), (0, 1), another="gve has a hash of its own"))
IN_SOFTIRQ = "queues 0-7 are polled in softirq"
LENDING = having(threaded="0")
LENT = replace(LENDING.queues[3], threaded=True, pid=77, borrowed=True)
LENT_ONE = replace(LENDING, queues=(*LENDING.queues[:3], LENT, *LENDING.queues[4:]))
NOT_LENT = replace(LENDING, borrows=False)
# What a script set up is reported before the NIC is armed. Armed, it may be atfnd's own.
RFS_ON = {RFS_TABLE: "32768", "rps-flow-cnt:0": "4096"}
SCRIPTED = replace(HARDWARE, armed=False, settings=RFS_ON, keeps_rfs=True)
UNKEPT = replace(SCRIPTED, keeps_rfs=False)
ASKS_RFS = replace(HARDWARE, unowned_rfs=True)
RFS_OFF = replace(ASKS_RFS, settings={RFS_TABLE: "0"})
NO_RFS_THREAD = replace(RFS_OFF, settings={RFS_TABLE: "0", "threaded": "0"})
SYMMETRIC = replace(HARDWARE, symmetric_hash=True)
APART = replace(on(0, 1), device=replace(HARDWARE.device, channels=2, channels_apart=True))
LONG = having(defer_hard_irqs="10", gro_flush_timeout="20000000")
GATED = without_rules(why="ntuple is off")
GATED = replace(GATED, device=replace(GATED.device, ntuple=False))
FULL = replace(able(filter_slots=10), filters=rules(9), owned=frozenset(range(6)))
ROOMY = replace(FULL, caps=replace(FULL.caps, filter_slots=100))
UNKNOWN_IRQ = on(0, 1, None)
UNKNOWN_IRQ = replace(
    UNKNOWN_IRQ, queues=(*UNKNOWN_IRQ.queues[:2], replace(UNKNOWN_IRQ.queues[2], irq=None))
)
FOLLOWED = replace(on(0, 1, 1, *range(3, 8)), homes={2: 2}, owners={2: "thread 7"})
SERVED = replace(HARDWARE, armed=True, serve_on=ServeOn(frozenset({0, 5})))
CONFLICTS = Conflict("aRFS is on", "turn it off", False), Conflict("XSK", "end it", True)
CONFLICTING = replace(HARDWARE, conflicts=CONFLICTS)
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
        (OWN_HASH, Level.NOTE, "not known, gve has a hash of its own. A move of such a flow", ""),
        (SYMMETRIC, Level.NOTE, "rss_hash: symmetric is not in force", None),
        (HARDWARE, Level.NOTE, "NUMA node 0, queues 4-7 are on another", ""),
        # How queues are polled
        (HARDWARE, Level.NOTE, f"{IN_SOFTIRQ}: strict order",
         "if applications are pinned: echo 1 > /sys/class/net/eth0/threaded"),
        (LENDING, Level.OK, f"{IN_SOFTIRQ}, and by NAPI threads that are borrowed", None),
        (LENT_ONE, Level.OK, f"{IN_SOFTIRQ}, and by NAPI threads that are borrowed", None),
        (NOT_LENT, Level.NOTE, "napi_threads: never", ""),
        (replace(LENDING, manual=frozenset({"threaded"})), Level.NOTE, "softirq: strict order", ""),
        (UNRECEIVED, Level.WARNING, "queue 2 is not received as the policy asks", ""),
        (having(defer_hard_irqs="10", gro_flush_timeout="0"), Level.NOTE, "gro_flush_timeout is 0",
         "napi_defer_hard_irqs"),
        (having(defer_hard_irqs="0", gro_flush_timeout="50000"), Level.WARNING,
         "holding packets in GRO", "echo 0 > /sys/class/net/eth0/gro_flush_timeout"),
        (LONG, Level.NOTE, "deferring interrupts by more than 12.5 ms", ""),
        # RFS
        (SCRIPTED, Level.NOTE, "eth0 is armed, it stays on queues that no thread owns",
         "in a pause"),
        (UNKEPT, Level.NOTE, "eth0 is armed, it is switched off, until restore", "in a pause"),
        (replace(UNKEPT, unowned_rfs=True), Level.NOTE, "it stays on queues that no thread", ""),
        (replace(SCRIPTED, manual=frozenset({RFS_TABLE})), Level.NOTE, "it is switched off", ""),
        (replace(SCRIPTED, method=SteeringMethod.RSS), Level.NOTE, "it is switched off", ""),
        (replace(UNKEPT, method=SteeringMethod.RFS), Level.NOTE, "eth0 is armed, it stays", ""),
        (replace(UNKEPT, method=SteeringMethod.NONE), Level.NOTE, "eth0 is armed, it stays", ""),
        (ASKS_RFS, Level.NOTE, "no queue can have RFS: the kernel offers no RFS here", ""),
        (replace(RFS_OFF, manual=frozenset({RFS_TABLE})), Level.NOTE,
         "no queue can have RFS: another program changed rps-sock", ""),
        (replace(RFS_OFF, caps=replace(RFS_OFF.caps, arfs=True)), Level.NOTE,
         "filters of its own (aRFS) while ntuple is on", ""),
        (replace(NO_RFS_THREAD, borrows=False), Level.NOTE, "RFS is not switched on for them", ""),
        # By what means, and how many filters
        (without_rules(driver="virtio_net", actuator=Actuator.NONE), Level.OK,
         "indirection table of RSS: no filters", ""),
        (GATED, Level.WARNING, "it takes no filters now: ntuple is off",
         "ethtool -K eth0 ntuple on"),
        (replace(GATED, device=replace(GATED.device, ntuple_fixed=True)), Level.WARNING,
         "it takes no filters now: ntuple is off", None),
        (replace(without_rules(), method=SteeringMethod.NONE), Level.BLOCKER,
         "nothing can be steered here: no filters", ""),
        (FULL, Level.WARNING, "9 of 10 filter slots used, 6 by us, 1 free", "min_rate"),
        (FULL, Level.NOTE, "3 filters in it are not ours", ""),
        (replace(FULL, owned=frozenset()), Level.WARNING, "by us, 1 free",
         "they are not ours: ethtool -n eth0 lists them"),
        (ROOMY, Level.OK, "9 of 100", ""),
        (replace(FULL, caps=replace(FULL.caps, filter_slots=None)), Level.OK,
         "it does not say how many it can hold", ""),
        (replace(ROOMY, budget=6), Level.WARNING, "our share of 6 filters is used up", ""),
        # Queues and their CPUs
        (on(0, 1, None), Level.WARNING, "queue 2 is not confined to one CPU",
         "echo CPU > /proc/irq/40/smp_affinity_list (queue 2)"),
        (UNKNOWN_IRQ, Level.WARNING,
         "queue 2 is served by an interrupt that is not known: no flow",
         "by queue, atfnd run finds out"),
        (replace(UNKNOWN_IRQ, caps=replace(UNKNOWN_IRQ.caps, queue_cpu=False)), Level.WARNING,
         "an interrupt that is not known", "by queue, atfnd run finds out"),
        (on(3, 1, 3), Level.WARNING,
         "queues 0,2 are sharing CPUs, while CPUs 0,2,4-7 have no queue", ""),
        (on(0, 1), Level.NOTE, "CPUs 2-7 have no queue", "ethtool -L eth0 combined 16"),
        (APART, Level.NOTE, "have no queue", "ethtool -L eth0 rx 16"),
        (FOLLOWED, Level.OK, "queues of CPUs 2 follow their owners", ""),
        (SERVED, Level.WARNING,
         "queues 0,5 are on CPUs where the policy serves no queue (serve_on !0,5)", ""),
        (replace(on(0, 1), serve_on=ServeOn(frozenset({0, 1, 2}), False)), Level.NOTE,
         "CPUs 2 have no queue", ""),
        (replace(HARDWARE, settings=ALLOWED), Level.NOTE,
         "queues 0,5 are allowed on several CPUs", ""),
        (on(), Level.WARNING, "names no receive queue", ""),
        (on(0), Level.OK, "1 queue is delivered on CPUs 0", ""),
        # How it stands
        (CONFLICTING, Level.WARNING, "aRFS is on", "turn it off"),
        (CONFLICTING, Level.BLOCKER, "XSK", "end it"),
        (MOVED, Level.WARNING, "another program changed queue-cpu:3, rss after atfnd",
         "to take it back: atfnctl resume eth0"),
        (replace(HARDWARE, up=False), Level.BLOCKER, "down", "bring eth0 up"),
        (replace(HARDWARE, armed=False), Level.NOTE, "not armed", "atfnctl arm eth0"),
        (replace(HARDWARE, armed=False, paused=True), Level.NOTE, "pause", "atfnctl resume eth0"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_what_a_nic_can_do_and_how_it_stands(
    nic: NicView, level: Level, words: str, advice: str | None
) -> None:
    finding = about(words, nic)
    assert finding.level is level
    assert (finding.advice is None) if advice is None else advice in (finding.advice or "")


@pytest.mark.parametrize(
    ("nic", "words"),
    [
        (replace(HARDWARE, method=SteeringMethod.RSS), "in softirq"),
        (replace(HARDWARE, queues=tuple(replace(q, threaded=None) for q in HARDWARE.queues)),
         "in softirq"),
        (LENDING, "polled by NAPI threads"),
        (LENT_ONE, "polled by NAPI threads"),
        (replace(LENDING, manual=frozenset({"threaded"})), "napi_threads: never"),
        (replace(SCRIPTED, armed=True), "RFS is set up"),
        (replace(SCRIPTED, settings=RFS_ON | {RFS_TABLE: "0"}), "RFS is set up"),
        (replace(SCRIPTED, settings=RFS_ON | {"rps-flow-cnt:0": "0"}), "RFS is set up"),
        (replace(SCRIPTED, caps=replace(SCRIPTED.caps, arfs=True)), "RFS is set up"),
        (replace(UNKEPT, method=SteeringMethod.RFS), "no thread owns"),
        (HARDWARE, "no queue can have RFS"),
        (RFS_OFF, "no queue can have RFS"),
        (NO_RFS_THREAD, "RFS is not switched on for them"),
        (NOT_LENT, "RFS is not switched on for them"),
        (HARDWARE, "rss_hash: symmetric"),
        (replace(SYMMETRIC, settings={RSS_KEY: "6d5a" * 20}), "rss_hash: symmetric"),
        (having(defer_hard_irqs="10", gro_flush_timeout="50000"), "GRO"),
        (having(defer_hard_irqs="0", gro_flush_timeout="0"), "defer"),
        (replace(LONG, queues=THREADS), "deferring"),
        (on(*range(8), 0, 1), "sharing"),  # more queues than CPUs: that is all that is left
        (FOLLOWED, "have no queue"),
        (FOLLOWED, "sharing"),
        (replace(SERVED, armed=False), "serves no queue"),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_what_is_as_it_should_be_is_not_mentioned(nic: NicView, words: str) -> None:
    assert not [each for each in found(nic) if words in each.what]


def test_what_is_in_the_way_is_said_once_and_a_pause_is_not() -> None:
    blocked = replace(
        CONFLICTING,
        method=SteeringMethod.NONE,
        method_why=Code.KERNEL("XSK: nothing is steered"),
    )
    assert len([each for each in found(blocked) if each.level is Level.BLOCKER]) == 1
    paused = replace(HARDWARE, armed=False, paused=True, method=SteeringMethod.NONE)
    paused = replace(paused, method_why=Code.KERNEL("paused"))
    virtio = without_rules(driver="virtio_net", actuator=Actuator.NONE)
    for nic in (paused, virtio):  # the second never has filters
        assert not [each for each in found(nic) if each.level in IN_THE_WAY]


def test_the_finding_on_an_unwatched_nic_says_how_to_watch_it() -> None:
    findings = found(replace(HARDWARE, armed=False), watched=False)
    assert [f for f in findings if f.advice == "start atfnd with --nic eth0 as well"]
    assert not [f for f in findings if "not armed" in f.what]


def test_queues_on_cpus_that_are_off_or_isolated() -> None:
    cpus = list(topology().cpus)
    cpus[2], cpus[3] = replace(cpus[2], online=False), replace(cpus[3], isolated=True)
    changed = replace(topology(), cpus=tuple(cpus))
    findings = {f.what: f.level for f in examine(HARDWARE, changed, PATIENT)}
    assert findings["queue 2 is on an offline CPU"] is Level.WARNING
    isolated = "queue 3 is on isolated CPUs, which the packets disturb"
    assert findings[isolated] is Level.WARNING


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
