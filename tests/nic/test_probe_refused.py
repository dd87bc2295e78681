# SPDX-License-Identifier: GPL-2.0-or-later
"""What a probe concludes when the kernel refuses one of its filters, and how often it makes the
driver complain."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import Match
from atfnd.nic.driver_table import DRIVERS
from atfnd.nic.drivers import Driver, Masks, flow_types
from atfnd.program.journals.filter_journal import FilterJournal
from tests.simulation.driver import Refusal
from tests.simulation.nic import WorldNic
from tests.simulation.world import World
from tests.values import key

MATCH = Match.of(key(1))
UNKNOWN = "nobody"  # a driver that the table does not have


def a_nic(driver: str) -> WorldNic:
    return WorldNic(World(1), "eth0", 1, driver, 4)


@pytest.mark.parametrize("code", [errno.ETIMEDOUT, errno.ENOMEM, errno.EBUSY, errno.EINVAL])
def test_only_a_refusal_that_does_not_pass_says_something_about_flow_types(code: int) -> None:
    nic = a_nic("hns3")
    nic.table.refusals.append(Refusal(code))
    assert nic.probe().takes(MATCH) == (code != errno.EINVAL)


def test_a_filter_that_a_busy_driver_took_stays_named_when_it_is_refused_at_last(
    tmp_path: Path,
) -> None:
    nic, journal = a_nic("iavf"), FilterJournal(tmp_path / "filters.journal")
    nic.table.refusals.append(Refusal(errno.EAGAIN, done=True))
    nic.probe(journal.claims(nic.name))
    left = {entry.match for entry in nic.table.entries.values()}
    assert len(left) == 1
    assert left <= {*journal.named(nic.name)}


@pytest.mark.parametrize("says_size", [True, False])
def test_a_driver_that_says_it_chooses_locations_and_refuses_to_gets_ours(says_size: bool) -> None:
    nic = a_nic(UNKNOWN)
    nic.table.says_any, nic.table.says_size = True, says_size
    assert nic.caps().location_any
    caps = nic.probe()
    assert (caps.filters, caps.location_any, caps.filter_slots) == (True, False, nic.table.slots)
    assert nic.table.complaints == 1
    assert not nic.table.entries
    at = nic.insert(MATCH, 1)
    assert nic.insert(MATCH, 2, at) == at
    assert [(found.location, found.queue) for found in nic.filters()] == [(at, 2)]


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda driver: driver.name)
def test_a_known_driver_is_asked_for_nothing_that_it_is_known_to_refuse(driver: Driver) -> None:
    """But fields left open, where only the NIC can say."""
    nic = a_nic(driver.name)
    caps = nic.probe()
    assert caps.flow_types == driver.types
    assert nic.table.complaints <= (driver.masks in (Masks.ONE, Masks.PER_TYPE, Masks.EXACT))


@pytest.mark.parametrize(
    ("takes", "masks", "most"),
    [
        ("", Masks.ANY, 2),
        ("tcp udp", Masks.EXACT, 4),
        ("udp", Masks.ANY, 5),
    ],
)
def test_an_unknown_driver_complains_a_few_times(takes: str, masks: Masks, most: int) -> None:
    nic = a_nic(UNKNOWN)
    types = flow_types(takes) or flow_types("sctp")
    nic.table.driver = replace(nic.table.driver, types=types, masks=masks)
    caps = nic.probe()
    assert caps.flow_types == flow_types(takes)
    assert nic.table.complaints <= most
