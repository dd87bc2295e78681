# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters where drivers differ: who chooses locations, what overwrites, what is refused or lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from atfnd.model import Action, ActionKind, Actuator, Caps, Filter, FlowKey, Match
from atfnd.model.reason import Code
from atfnd.nic import Nic
from atfnd.program import filter
from atfnd.program.journals.filter_journal import FilterJournal
from tests.guest.filters import add_foreign, listed, match_of, shown
from tests.guest.simlab import FAULTS, a_simlab, ethtool
from tests.wait import until

KEY = FlowKey(6, bytes([10, 9, 0, 1]), 443, bytes([10, 1, 2, 3]), 1001)
OF_MATCH_1 = "flow-type tcp4 src-ip 10.1.2.3 dst-ip 10.9.0.1 src-port 1001 dst-port 443"
ALL_WE_TRY = frozenset({(4, 6), (4, 17), (6, 6), (6, 17)})  # of what simnic takes


def fault(name: str, value: object) -> None:
    (FAULTS / name).write_text(f"{value}\n")


def probed(nic: Nic) -> Caps:
    """The probe leaves the table as it was."""
    before = listed()
    caps = nic.probe()
    assert listed() == before
    assert nic.caps() == caps
    return caps


def test_explicit_locations_are_taken_from_the_top_down() -> None:
    with a_simlab(table=8, location="explicit") as lab:
        foreign = add_foreign("flow-type tcp4 dst-port 22 action 0 loc 6")
        # the highest is for the filter of a port
        assert [lab.nic.insert(match_of(n), 1) for n in range(2)] == [5, 4]
        taken = add_foreign("flow-type tcp4 dst-port 23 action 0 loc 3")  # we took it for free
        before = {at: listed()[at] for at in (foreign, taken)}
        assert lab.nic.insert(match_of(2), 1) == 2
        assert {at: listed()[at] for at in (foreign, taken)} == before


@pytest.mark.parametrize("overwrite", ["in_place", "gap", "exists"])
@pytest.mark.parametrize("location", ["explicit", "any"])
@pytest.mark.parametrize("first", ["probed", "not probed"])
def test_a_move_in_every_class(location: str, overwrite: str, first: str) -> None:
    with a_simlab(table=8, location=location, overwrite=overwrite) as lab:
        foreign = add_foreign("flow-type tcp4 dst-port 22 action 0")
        if first == "probed":
            assert probed(lab.nic).filters
        at = lab.nic.insert(match_of(1), 1)
        for queue in (2, 3, 3):
            at = lab.nic.insert(match_of(1), queue, at)
            assert listed().keys() == {foreign, at}
            assert listed()[at] == shown(Filter(at, match_of(1), queue))


@pytest.mark.parametrize("duplicates", [0, 1])
def test_a_foreign_filter_of_our_match_is_not_overwritten(duplicates: int) -> None:
    with a_simlab(table=8, location="any", duplicates=duplicates) as lab:
        at = add_foreign(f"{OF_MATCH_1} action 0")
        with pytest.raises(FileExistsError, match=r"match|exists"):
            lab.nic.insert(match_of(1), 1)
        assert listed() == {at: shown(Filter(at, match_of(1), 0))}


def test_one_match_at_two_locations() -> None:
    with a_simlab(table=8, location="explicit") as lab:
        theirs = add_foreign(f"{OF_MATCH_1} action 0 loc 2")
        ours = lab.nic.insert(match_of(1), 1)
        assert lab.nic.insert(match_of(1), 3, ours) == ours
        assert lab.nic.filters() == [Filter(theirs, match_of(1), 0), Filter(ours, match_of(1), 3)]
        lab.nic.delete(ours)
        assert listed().keys() == {theirs}
    with a_simlab(table=8, location="explicit", duplicates=0) as lab:
        ours = lab.nic.insert(match_of(1), 1)
        with pytest.raises(FileExistsError):
            lab.nic.insert(match_of(1), 2)
        assert listed().keys() == {ours}


def test_a_probe_finds_what_a_filter_may_match() -> None:
    port = Match(4, 17, None, 0, None, 0, None, 53)
    with a_simlab(table=8, masks=0, v6=0) as lab:
        caps = probed(lab.nic)
        assert (caps.filters, caps.prefix_masks) == (True, False)
        assert caps.flow_types == frozenset({(4, 6), (4, 17)})
        for words in ("must name the whole 5-tuple (EINVAL)", "no TCP/IPv6 filters (EINVAL)"):
            assert words in (caps.why or "")
        assert (caps.takes(port), caps.takes(match_of(1))) == (False, True)
        with pytest.raises(OSError, match="Invalid"):
            lab.nic.insert(port, 1)
        assert listed() == {}


@pytest.mark.parametrize(
    ("driver", "expected", "why"),
    [
        ("ixgbe", False, "ntuple filters are off: ethtool -K sim0 ntuple on"),
        (
            "simnic",
            True,
            "simnic: 5-tuple filters are refused (EOPNOTSUPP); ntuple filters are off, which may "
            "be why: ethtool -K sim0 ntuple on",
        ),
    ],
)
def test_filters_that_are_off(driver: str, expected: bool, why: str) -> None:
    """A driver that nobody knows may need no switch: it is tried."""
    with a_simlab(table=8, ntuple_on=0, drvname=driver, location="explicit") as lab:
        assert lab.nic.caps().filters is expected
        caps = probed(lab.nic)
        assert (caps.filters, caps.why) == (False, why)
        ethtool("-K", "sim0", "ntuple", "on")
        assert lab.nic.probe().filters


def test_the_probe_of_a_known_driver() -> None:
    with a_simlab(table=8, drvname="mlx5_core", location="explicit") as lab:
        expected = lab.nic.caps()
        assert (expected.filters, expected.probed, expected.filter_slots) == (True, False, 8)
        assert expected.actuator is Actuator.LONG_GAP
        caps = probed(lab.nic)
        assert (caps.probed, caps.prefix_masks, caps.flow_types) == (True, True, ALL_WE_TRY)
        assert caps.why is None  # SCTP is not tried


def test_a_full_table_is_no_proof() -> None:
    with a_simlab(table=2, location="explicit") as lab:
        for port in (22, 23):
            add_foreign(f"flow-type tcp4 dst-port {port} action 0")
        caps = probed(lab.nic)
        assert (caps.filters, caps.probed) == (True, False)
        assert caps.why == "filters could not be probed: ENOSPC"


def test_a_probe_that_fails_half_way_leaves_nothing() -> None:
    with a_simlab(table=8, location="explicit") as lab:
        add_foreign("flow-type tcp4 dst-port 22 action 0")
        for after in range(4):
            fault("fail_insert", f"{errno.EIO} {after}")
            assert probed(lab.nic).filters


def test_an_asynchronous_driver_with_a_full_table() -> None:
    """The insert is accepted, and the filter goes when its time comes; the list is the truth."""
    with a_simlab(table=2, location="explicit", async_ms=20, drvname="iavf") as lab:
        assert probed(lab.nic).asynchronous
        assert not listed()
        locations = [lab.nic.insert(match_of(n), 1) for n in range(3)]  # of two
        until(lambda: listed().keys() == set(locations[:2]), "the third goes again")
        assert lab.nic.filter(locations[2]) is None


def rewrite(location: int, queue: int) -> Action:
    return Action(ActionKind.REWRITE, "sim0", KEY, location, 1, queue, Code.KERNEL("moved"), "test")


def test_a_refused_move_says_what_it_left(tmp_path: Path) -> None:
    match = Match.of(KEY)
    for overwrite, lost in (("in_place", False), ("gap", True)):
        journal = FilterJournal(tmp_path / overwrite)
        with a_simlab(table=8, location="explicit", overwrite=overwrite) as lab:
            at = lab.nic.insert(match, 1)
            journal.claim("sim0", match)
            fault("fail_insert", errno.EIO)
            outcome = filter.apply(lab.nic, journal, rewrite(at, 2))
            assert outcome.errno == errno.EIO
            assert outcome.location == (None if lost else at)
            assert listed() == ({} if lost else {at: shown(Filter(at, match, 1))})
            left = "lost it: delivered by RSS" if lost else "still points to queue 1"
            assert left in outcome.left
        journal.close()
        assert FilterJournal(tmp_path / overwrite).left.get("sim0", {}).keys() == (
            set() if lost else {match}
        )
