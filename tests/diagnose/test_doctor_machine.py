# SPDX-License-Identifier: GPL-2.0-or-later
"""What the doctor finds that is of no one NIC."""

from __future__ import annotations

import pytest

from atfnd.diagnose.machine import examine_machine
from atfnd.model import FoundInterface, Level, Machine, Rival


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
