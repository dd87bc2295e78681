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

__all__: list[str] = []

KEY = FlowKey(6, bytes([10, 9, 0, 1]), 443, bytes([10, 1, 2, 3]), 1001)
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
        at = add_foreign("flow-type tcp4 src-ip 10.1.2.3 dst-ip 10.9.0.1 src-port 1001 "
                         "dst-port 443 action 0")  # fmt: skip
        with pytest.raises(OSError, match=r"match|exists") as refused:
            lab.nic.insert(match_of(1), 1)
        assert refused.value.errno == errno.EEXIST
        assert listed() == {at: shown(Filter(at, match_of(1), 0))}


def test_one_match_at_two_locations() -> None:
    with a_simlab(table=8, location="explicit") as lab:
        theirs = add_foreign("flow-type tcp4 src-ip 10.1.2.3 dst-ip 10.9.0.1 src-port 1001 "
                             "dst-port 443 action 0 loc 2")  # fmt: skip
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


def test_exact_filters_only() -> None:
    with a_simlab(table=8, masks=0) as lab:
        caps = probed(lab.nic)
        assert (caps.filters, caps.prefix_masks) == (True, False)
        assert caps.why is not None
        assert "filters must name the whole 5-tuple (EINVAL)" in caps.why
        port = Match(4, 17, None, 0, None, 0, None, 53)
        assert not caps.takes(port)
        assert caps.takes(match_of(1))
        with pytest.raises(OSError, match="Invalid"):
            lab.nic.insert(port, 1)
        assert listed() == {}


def test_ipv4_only() -> None:
    with a_simlab(table=8, v6=0) as lab:
        caps = probed(lab.nic)
        assert caps.flow_types == frozenset({(4, 6), (4, 17)})
        assert caps.why is not None
        assert "no TCP/IPv6 filters (EINVAL)" in caps.why


def test_no_filters_at_all() -> None:
    with a_simlab(rules=0, drvname="virtio_net") as lab:
        for caps in (lab.nic.caps(), lab.nic.probe()):
            assert (caps.filters, caps.actuator) == (False, Actuator.NONE)
            assert caps.why is not None
            assert caps.why.startswith("virtio_net has no")
        assert lab.nic.filters() == []
        with pytest.raises(OSError, match="not supported"):
            lab.nic.insert(match_of(1), 1)


def test_filters_that_are_off() -> None:
    with a_simlab(table=8, ntuple_on=0, drvname="ixgbe", location="explicit") as lab:
        for caps in (lab.nic.caps(), probed(lab.nic)):
            assert not caps.filters
            assert caps.why == "ntuple filters are off: ethtool -K sim0 ntuple on"
        ethtool("-K", "sim0", "ntuple", "on")
        assert lab.nic.probe().filters


def test_a_driver_that_says_on_and_refuses_all() -> None:
    with a_simlab(table=8, ntuple_on=0) as lab:
        assert lab.nic.caps().filters
        caps = probed(lab.nic)
        assert not caps.filters
        assert caps.why == (
            "simnic: 5-tuple filters are refused (EOPNOTSUPP); ntuple filters are off, which may "
            "be why: ethtool -K sim0 ntuple on"
        )


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


@pytest.mark.parametrize("after", range(4))
def test_a_probe_that_fails_half_way_leaves_nothing(after: int) -> None:
    with a_simlab(table=8, location="explicit") as lab:
        add_foreign("flow-type tcp4 dst-port 22 action 0")
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


def test_a_filter_that_vanishes() -> None:
    with a_simlab(table=8, location="explicit") as lab:
        fault("vanish", 1)
        gone, stays = (lab.nic.insert(match_of(n), 1) for n in range(2))
        until(lambda: listed().keys() == {stays}, "the NIC dropped what it accepted")
        assert lab.nic.filter(gone) is None
        assert [rule.location for rule in lab.nic.filters()] == [stays]


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


def test_an_insert_refused_in_the_middle_of_many(tmp_path: Path) -> None:
    journal = FilterJournal(tmp_path / "journal")
    keys = [KEY._replace(remote_port=2000 + n) for n in range(5)]
    with a_simlab(table=8, location="explicit") as lab:
        fault("fail_insert", f"{errno.ENOMEM} 2")
        outcomes = [
            filter.apply(
                lab.nic,
                journal,
                Action(ActionKind.INSERT, "sim0", key, None, None, 1, Code.KERNEL("why"), "test"),
            )
            for key in keys
        ]
        assert [outcome.errno for outcome in outcomes] == [0, 0, errno.ENOMEM, 0, 0]
        assert listed().keys() == {o.location for o in outcomes if o.location is not None}
        assert len(listed()) == 4
    journal.close()
