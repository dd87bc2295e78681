# SPDX-License-Identifier: GPL-2.0-or-later
"""What the doctor says of daemons and files that move a NIC's interrupts or change its filters."""

from __future__ import annotations

from dataclasses import replace

from atfnd.model import Level, LinkFile, Machine, Rival
from tests.diagnose.test_doctor import HARDWARE, about, found
from tests.values import NIC

__all__: list[str] = []


def test_irqbalance_is_in_the_way_until_it_spares_the_interrupts() -> None:
    machine = Machine(rivals=(Rival("irqbalance", 7, frozenset({40, 41})),))
    finding = about("irqbalance (pid 7) moves its interrupts 42-47", HARDWARE, machine)
    assert finding.level is Level.WARNING
    assert "--banirq=42 --banirq=43 --banirq=44 --banirq=45 ..." in (finding.advice or "")
    machine = Machine(rivals=(Rival("irqbalance", 7, frozenset(range(40, 48))),))
    assert about("leaves its interrupts alone", HARDWARE, machine).level is Level.OK
    assert found(NIC, machine) == found(NIC)  # a lab NIC has no interrupts


def test_a_link_file_of_this_interface() -> None:
    file = LinkFile("/etc/systemd/network/1.link", ("IRQAffinity=0",), frozenset({"eth0"}))
    machine = Machine(link_files=(file,))
    assert about("1.link sets IRQAffinity=0", HARDWARE, machine).level is Level.WARNING
    assert found(replace(HARDWARE, name="eth1"), machine) == found(replace(HARDWARE, name="eth1"))
    elsewhere = replace(HARDWARE, netns="/run/netns/x")
    assert found(elsewhere, machine) == found(elsewhere)


def test_a_profile_of_network_manager() -> None:
    profile = LinkFile("/etc/x.nmconnection", ("feature-ntuple=false",), frozenset({"eth0"}),
                       "NetworkManager")  # fmt: skip
    finding = about("sets feature-ntuple=false", HARDWARE, Machine(link_files=(profile,)))
    assert finding.level is Level.WARNING
    assert finding.advice == "nmcli connection modify NAME ethtool.feature-ntuple ''"


def test_an_irqbalance_that_does_not_answer_is_asked_again() -> None:
    machine = Machine(rivals=(Rival("irqbalance", 7, answers=False),))
    assert about("irqbalance (pid 7) does not say now", HARDWARE, machine).level is Level.NOTE
