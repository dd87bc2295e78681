# SPDX-License-Identifier: GPL-2.0-or-later
"""What atfnd relies on, proven on a real NIC: `NIC=eth2 make test-nic`.

Filters are for documentation addresses (RFC 5737, RFC 3849) and port 9, so no traffic of the
machine is steered by them. The indirection table and the CPUs of interrupts are changed for
moments; traffic goes on. Every test leaves the NIC as it was, which the fixture checks.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from atfnd.model import Actuator, Match, Protocol
from atfnd.nic import Nic
from tests.wait import until

REMOTE = {4: bytes([192, 0, 2, 9]), 6: bytes.fromhex("20010db8") + bytes(11) + b"\x09"}
LOCAL = {4: bytes([198, 51, 100, 9]), 6: bytes.fromhex("20010db8") + bytes(11) + b"\x0a"}
RULES = 8


def match_of(family: int, protocol: int, number: int) -> Match:
    bits = 32 if family == 4 else 128
    return Match(
        family, protocol, REMOTE[family], bits, LOCAL[family], bits, 1000 + number, 9
    )  # fmt: skip


def listed(nic: Nic) -> str:
    """The filters as ethtool(8) shows them; nothing where the driver has no table."""
    done = subprocess.run(["ethtool", "-n", nic.name], capture_output=True, text=True)
    return done.stdout


@contextmanager
def filters(nic: Nic, matches: list[Match], queue: int) -> Iterator[list[int]]:
    locations: list[int] = []
    try:
        for match in matches:
            locations.append(nic.insert(match, queue))
        yield locations
    finally:
        for location in locations:
            nic.delete(location)


def holds(nic: Nic, locations: list[int], matches: list[Match], queue: int = 0) -> bool:
    """At these locations are filters for this, to this queue: drivers may take their time."""
    rules = [nic.filter(location) for location in locations]
    return [(r.match, r.queue) if r else None for r in rules] == [(m, queue) for m in matches]


def flow_types(nic: Nic) -> list[tuple[int, int]]:
    """What the probe found its filters to take; without any, why is said."""
    caps = nic.probe()
    if not caps.filters:
        assert caps.actuator is Actuator.NONE
        assert caps.why
        return []
    every = [(family, protocol) for family in (4, 6) for protocol in Protocol]
    return [each for each in every if caps.flow_types is None or each in caps.flow_types]


def test_a_probe_leaves_nothing_behind(nic: Nic) -> None:
    before = listed(nic)
    first = nic.probe()
    assert nic.probe() == first
    assert listed(nic) == before


def test_filters_of_every_flow_type_are_there_and_go_again(nic: Nic) -> None:
    before = listed(nic)
    for family, protocol in flow_types(nic):
        matches = [match_of(family, protocol, number) for number in range(RULES)]
        with filters(nic, matches, 0) as locations:
            assert len(set(locations)) == RULES
            until(partial(holds, nic, locations, matches), "the NIC lists what was inserted")
            assert all(f"Filter: {location}" in listed(nic) for location in locations)
        assert listed(nic) == before


def test_a_filter_gets_another_queue(nic: Nic) -> None:
    queues = [queue.index for queue in nic.queues()]
    for family, protocol in flow_types(nic)[:1]:
        match = match_of(family, protocol, 0)
        with filters(nic, [match], queues[0]) as locations:
            for queue in (queues[-1], queues[0]):
                locations[0] = nic.insert(match, queue, locations[0])
                until(
                    partial(holds, nic, locations, [match], queue),
                    f"the filter leads to queue {queue}",
                )
            assert sum(rule.match == match for rule in nic.filters()) == 1


def test_a_filter_to_no_queue_is_refused(nic: Nic) -> None:
    for family, protocol in flow_types(nic)[:1]:
        before = listed(nic)
        with pytest.raises(OSError, match=r"\[Errno (22|28|34)\]"):  # EINVAL, ENOSPC, ERANGE
            nic.insert(match_of(family, protocol, 0), 4095)
        assert listed(nic) == before


def test_the_indirection_table_can_be_turned_and_put_back(nic: Nic) -> None:
    rss = nic.rss()
    if rss is None or not nic.caps().rss_table:
        assert "rss" not in nic.settings()
        return
    before = nic.settings()["rss"]
    try:
        nic.write_setting("rss", " ".join(map(str, reversed(rss.table))))
        now = nic.rss()
        assert now is not None
        assert now.table == tuple(reversed(rss.table))
    finally:
        nic.write_setting("rss", before)


def test_a_queue_goes_to_every_cpu_and_back(nic: Nic) -> None:
    names = [name for name in nic.settings() if name.startswith("queue-cpu:")]
    if not names or not nic.caps().queue_cpu:
        assert nic.conflicts()
        return
    name = names[0]
    before = nic.settings()[name]
    try:
        for cpu in sorted(os.sched_getaffinity(0)):
            nic.write_setting(name, str(cpu))
            assert nic.settings()[name] == str(cpu)
    finally:
        nic.write_setting(name, before)


def test_what_it_shows_is_what_ethtool_shows(nic: Nic) -> None:
    device = nic.device()
    said = subprocess.run(["ethtool", "-i", nic.name], capture_output=True, text=True, check=True)
    assert f"driver: {device.driver}" in said.stdout
    assert len(nic.queues()) == (device.channels or len(nic.queues()))
