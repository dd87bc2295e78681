# SPDX-License-Identifier: GPL-2.0-or-later
"""What the doctor finds that is of no one NIC: the machine, other programs, CPUs and settings."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from atfnd.diagnose.dedicated import examine_dedicated
from atfnd.diagnose.host_settings import budget_of, examine_host
from atfnd.diagnose.machine import examine_machine
from atfnd.model import (
    CpuUser,
    FoundInterface,
    HostStanding,
    Level,
    LinkFile,
    Machine,
    Queue,
    Rival,
)
from atfnd.model.softirq_budget import PACKETS, TIME
from tests.diagnose.machines import topology
from tests.diagnose.test_doctor import HARDWARE, about, found
from tests.values import NIC


def test_the_machine() -> None:
    bpf = "bpf", "asked for"
    (observer,) = examine_machine(Machine(), bpf, ["eth0"])
    assert (observer.level, observer.nic) == (Level.OK, None)
    machine = Machine(
        rivals=(Rival("numad", 8), Rival("tuned", 9, profile="cpu-partitioning")),
        interfaces=(FoundInterface("eth0", "ixgbe", 8), FoundInterface("eth1", None, 4)),
        missing_capabilities=frozenset({"CAP_NET_ADMIN"}),
        netdev_family=False,
        ethtool_family=False,
    )
    reported = {f.what: f.level for f in examine_machine(machine, bpf, ["eth0"])}
    assert reported["eth1 (unknown driver, 4 queues) is not watched"] is Level.NOTE
    assert not any(what.startswith("eth0") for what in reported)
    assert reported["tuned (pid 9), profile cpu-partitioning, moves interrupts"] is Level.WARNING
    assert Level.BLOCKER in reported.values()
    moves = {"openshift-x": ("isolated_cores", "[irq]"), "no-isolation": ()}
    tuned = [Rival("tuned", 9, profile=name, moves=moves[name]) for name in moves]
    first, second = examine_machine(Machine(rivals=tuple(tuned)), None, [])
    assert (
        first.what == "tuned (pid 9), profile openshift-x, moves interrupts (isolated_cores, [irq])"
    )
    assert second.level is Level.NOTE
    assert sum("netlink family" in what for what in reported) == 2


@pytest.mark.parametrize(
    ("on", "words", "advice"),
    [
        (("net.core.busy_poll",), "by net.core.busy_poll app", "net.core.busy_poll=0"),
        (
            ("net.core.busy_poll", "net.core.busy_read"),
            "by net.core.busy_poll and net.core.busy_read app",
            "sysctl -w net.core.busy_poll=0 net.core.busy_read=0",
        ),
    ],
)
def test_busy_polling(on: tuple[str, ...], words: str, advice: str) -> None:
    (finding,) = examine_machine(Machine(busy_polling=on), None, [])
    assert finding.level is Level.WARNING
    assert words in finding.what
    assert (finding.advice or "").endswith(advice)


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (Machine(btf=False), "CONFIG_DEBUG_INFO_BTF"),
        (Machine(lockdown="confidentiality"), "lockdown"),
        (Machine(), "--observer bpf"),
    ],
)
def test_without_bpf_it_says_what_is_missing(machine: Machine, words: str) -> None:
    (finding,) = examine_machine(machine, ("sock_diag", "no BPF: EPERM"), [])
    assert finding.level is Level.WARNING
    assert "no BPF: EPERM" in finding.what
    assert words in (finding.advice or "")


# Daemons and files that move its interrupts or change its filters


def test_irqbalance_is_in_the_way_until_it_spares_the_interrupts() -> None:
    machine = Machine(rivals=(Rival("irqbalance", 7, frozenset({40, 41})),))
    finding = about("irqbalance (pid 7) moves its interrupts 42-47", HARDWARE, machine)
    assert finding.level is Level.WARNING
    assert "--banirq=42 --banirq=43 --banirq=44 --banirq=45 ..." in (finding.advice or "")
    machine = Machine(rivals=(Rival("irqbalance", 7, frozenset(range(40, 48))),))
    assert about("leaves its interrupts alone", HARDWARE, machine).level is Level.OK
    machine = Machine(rivals=(Rival("irqbalance", 7, answers=False),))
    assert about("irqbalance (pid 7) does not say now", HARDWARE, machine).level is Level.NOTE
    assert found(NIC, machine) == found(NIC)  # a lab NIC has no interrupts


ETH0 = frozenset({"eth0"})
UDEV = LinkFile("/etc/systemd/network/1.link", ("IRQAffinity=0",), ETH0)
PROFILE = LinkFile("/etc/x.nmconnection", ("feature-ntuple=false",), ETH0, "NetworkManager")


def test_files_that_set_again_what_we_steer_with() -> None:
    machine = Machine(link_files=(UDEV, PROFILE))
    assert about("1.link sets IRQAffinity=0", HARDWARE, machine).level is Level.WARNING
    finding = about("sets feature-ntuple=false", HARDWARE, machine)
    assert finding.level is Level.WARNING
    assert finding.advice == "nmcli connection modify NAME ethtool.feature-ntuple ''"
    for other in (replace(HARDWARE, name="eth1"), replace(HARDWARE, netns="/run/netns/x")):
        assert found(other, machine) == found(other)


# Applications on dedicated CPUs

SSHD = CpuUser(10, "sshd", "ssh.service")
SHELL = CpuUser(20, "bash", None)


@pytest.mark.parametrize(
    ("users", "named", "advice"),
    [
        (
            [SSHD, SSHD._replace(pid=11), SHELL],
            "ssh.service, bash (pid 20)",
            "systemctl edit ssh.service: [Service] AllowedCPUs=2-7, and so for each unit; or boot "
            "with isolcpus=0-1",
        ),
        ([SHELL], "bash (pid 20)", "boot with isolcpus=0-1"),
        (
            [SHELL._replace(pid=pid) for pid in range(1, 8)],
            ", ".join(f"bash (pid {pid})" for pid in range(1, 6)) + " and 2 more",
            "boot with isolcpus=0-1",
        ),
    ],
)
def test_those_that_use_dedicated_cpus_are_named(
    users: list[CpuUser], named: str, advice: str
) -> None:
    [finding] = examine_dedicated(frozenset({0, 1}), users, topology())
    assert finding.level is Level.WARNING
    assert finding.what == f"CPUs 0-1 are dedicated, and applications use them: {named}"
    assert finding.advice == advice


def test_cpus_that_nobody_uses_and_a_machine_without_another_one() -> None:
    assert [*examine_dedicated(frozenset({0}), [], topology())] == []
    [finding] = examine_dedicated(frozenset(range(8)), [SHELL], topology())
    assert finding.advice == "dedicate fewer CPUs: no other one is online"


# The softirq budget that a policy asks for


SET = HostStanding(PACKETS, "set", "2", "2", "300", "")
LEFT = HostStanding(TIME, "left", "8000", None, None, "")
SOFTIRQ = Queue(0, 1, 40, 0, False, None)
THREADED = Queue(0, 1, 40, 0, True, 77)
BORROWED = replace(THREADED, borrowed=True)


def said(each: HostStanding, *queues: Queue, **machine: object) -> list[tuple[Level, str]]:
    nics = [replace(NIC, queues=queues or (SOFTIRQ,))]
    found = examine_host([each, LEFT], Machine(**machine), nics)  # type: ignore[arg-type]
    return [(finding.level, finding.what) for finding in found]


NOBODYS = SET._replace(state="left", wanted=None, original=None)
ASKED = SET._replace(now="300", why="because")
SHOULD_BE = f"{PACKETS} is 300 and should be 2: because"


@pytest.mark.parametrize(
    ("standing", "expected"),
    [
        (NOBODYS, []),
        (ASKED._replace(state="wanted"), [(Level.NOTE, SHOULD_BE)]),
        (ASKED._replace(state="manual"), [(Level.WARNING, SHOULD_BE)]),
        (ASKED._replace(state="refused"), [(Level.WARNING, SHOULD_BE)]),
        (
            ASKED._replace(state="unknown", now=None),
            [(Level.WARNING, SHOULD_BE.replace("300", "not there"))],
        ),
        (
            SET._replace(wanted=None, why="it goes back later"),
            [(Level.NOTE, f"{PACKETS} is 2: it goes back later")],
        ),
    ],
    ids=itertools.count(),
)
def test_what_is_not_as_the_policy_asks_is_said_with_the_reason(
    standing: HostStanding, expected: list[tuple[Level, str]]
) -> None:
    assert said(standing) == expected


def test_it_has_no_effect_where_threads_poll_every_queue() -> None:
    as_asked = (Level.OK, f"{PACKETS} is 2, as the policy asks")
    assert said(SET) == said(SET, SOFTIRQ, THREADED) == said(SET, BORROWED) == [as_asked]
    *first, (level, what) = said(SET, THREADED)
    assert first == [as_asked]
    assert level is Level.NOTE
    assert "no effect on the queues that atfnd serves" in what


def test_bpftune_fights_over_it_only_if_it_is_asked_for() -> None:
    rivals = (Rival("bpftune", 9), Rival("numad", 8))
    *_, (level, what) = said(SET, rivals=rivals)
    assert level is Level.WARNING
    assert what.startswith("bpftune (pid 9) changes the softirq budget")
    assert said(NOBODYS, rivals=rivals) == []


def test_a_flow_is_explained_by_what_ends_a_pass_over_its_queue() -> None:
    both = [SET, HostStanding(TIME, "set", "20000", "20000", "8000", "")]
    ends = "The softirq that polls its queue ends a pass after 2 packets"
    assert budget_of(SOFTIRQ, both) == f"{ends} or 20000 us (policy)."
    assert budget_of(BORROWED, [SET, LEFT]) == f"{ends} (policy)."
    assert "does not bound it" in (budget_of(THREADED, both) or "")
    for state in ("wanted", "manual"):
        assert budget_of(SOFTIRQ, [SET._replace(state=state), LEFT]) is None
    assert budget_of(SOFTIRQ, [SET._replace(wanted=None)]) is None
