# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator asks for is in force whatever fails, holds until the next order, and is said if
it was not done whole. Where no operator has said otherwise, a policy arms and disarms."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atfnd.daemon.interface_rules import Given
from atfnd.daemon.session import NicSession
from atfnd.errors import OperatorError
from atfnd.model import InterfaceRule, Policy
from atfnd.observe.nics.watch import NicWatch
from tests.daemon.simulated import Simulated, simulated, text_of
from tests.simulation.driver import FOREIGN
from tests.values import NIC, RULE

ON, PAUSED, OFF = (True, False), (False, True), (False, False)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Simulated]:
    """Two armed NICs, each with a filter of ours."""
    with simulated(tmp_path, nics=2) as made:
        for number in range(2):
            made.opens(nic=number)
        made.until(lambda: made.filters(0) and made.filters(1))
        yield made


@pytest.mark.parametrize(
    ("orders", "stands", "filters"),
    [
        (["disarm"], OFF, 1),
        (["disarm", "arm"], ON, 1),
        (["pause"], PAUSED, 0),
        (["pause", "pause"], PAUSED, 0),
        (["disarm", "pause"], PAUSED, 0),
        (["pause", "arm"], ON, 1),
        (["pause", "disarm"], OFF, 0),
        (["pause", "resume"], ON, 1),
        (["disarm", "pause", "resume"], OFF, 0),
        (["restore"], OFF, 0),
        (["restore", "resume"], OFF, 0),
        (["restore", "arm"], ON, 1),
    ],
    ids=str,
)
def test_orders(bed: Simulated, orders: list[str], stands: tuple[bool, bool], filters: int) -> None:
    """Also for the next run and when it comes again, and for this NIC alone."""
    for verb in orders:
        bed.order(verb)
    bed.goes_on()
    every = {"eth0": stands, "eth1": ON}
    assert (bed.stands(), bed.filters(0), bed.filters(1)) == (every, filters, 1)
    bed.killed()
    assert bed.stands() == every
    bed.goes_away()
    assert bed.stands() == {"eth1": ON}
    bed.comes()
    assert bed.stands() == every


def refuse(code: int) -> Any:
    def refused(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    return refused


@pytest.mark.parametrize(
    ("before", "verb", "stands"),
    [
        (None, "pause", PAUSED),
        (None, "restore", OFF),
        ("disarm", "arm", ON),
        ("pause", "resume", ON),
    ],
)
def test_counters_that_cannot_be_read_keep_no_order_from_being_in_force(
    bed: Simulated,
    monkeypatch: pytest.MonkeyPatch,
    before: str | None,
    verb: str,
    stands: tuple[bool, bool],
) -> None:
    if before is not None:
        bed.order(before)
    with monkeypatch.context() as refusing:
        refusing.setattr(NicWatch, "look_at_reads", refuse(errno.EIO))
        bed.begin(getattr(bed.daemon.source, verb)("eth0"))
        bed.goes_on(0.1)
    assert bed.stands()["eth0"] == stands
    bed.goes_on()
    assert bed.filters(0) == (stands == ON)


def test_a_pause_says_what_the_kernel_did_not_undo_and_another_one_tries_again(
    bed: Simulated,
) -> None:
    nic = bed.here[0]
    nic.refusals.append(errno.EIO)
    with pytest.raises(OperatorError, match="the kernel refused to undo: "):
        bed.order("pause")
    assert bed.stands()["eth0"] == PAUSED
    assert nic.values != nic.untouched
    bed.order("pause")
    assert nic.values == nic.untouched


@pytest.mark.parametrize("what", ["filters", "settings"])
def test_a_nic_that_cannot_be_read_is_undone_all_the_same(bed: Simulated, what: str) -> None:
    nic = bed.here[0]
    (nic.table.unread if what == "filters" else nic.unreadable).extend([errno.EIO] * 2)
    done = bed.order("restore")
    [filters] = [each for each in done if "filters" in each.what]
    assert filters.done is (what == "settings")
    assert bed.stands()["eth0"] == OFF
    assert nic.values == nic.untouched


def test_a_resume_without_anything_to_take_back_does_nothing(bed: Simulated) -> None:
    bed.order("resume")
    assert bed.said("resume") == []


def test_a_resume_takes_over_again_what_another_program_took(bed: Simulated) -> None:
    [entry] = bed.here[0].our_entries()
    bed.here[0].table.take(entry.location, FOREIGN)
    bed.goes_on()
    assert bed.filters(0) == 0
    bed.order("resume", "eth1")
    bed.goes_on()
    assert bed.filters(0) == 0
    bed.order("resume")
    bed.goes_on()
    assert [each.match for each in bed.here[0].our_entries()] == [entry.match]


@pytest.mark.parametrize("verb", ["arm", "pause", "resume", "restore"])
@pytest.mark.parametrize("called", [None, "ren1"])
def test_a_nic_that_has_just_gone_is_not_there_for_an_order(
    bed: Simulated, verb: str, called: str | None
) -> None:
    """Nobody has heard yet that it went, or has another name."""
    nic = bed.here[0]
    nic.changed_link = lambda nic: None
    nic.unplug() if called is None else nic.rename(called)
    written = bed.service.orders
    with pytest.raises(KeyError):
        bed.order(verb)
    assert (written.armed("eth0"), written.paused("eth0")) == (None, False)


class TestTheKillSwitch:
    """`disarm` is in force before anything else happens, whatever fails then."""

    def test_moves_that_do_not_end_in_order(self, bed: Simulated) -> None:
        """They are ended once nothing is armed, and stand in nobody's way."""
        seen = list[dict[str, tuple[bool, bool]]]()
        for _, actuator in bed.kernel.actuator:
            actuator.fails_to_end = True
        end_moves = NicSession.end_moves
        why = "is disarmed, but moves under way did not end in order: Input/output error"

        def ends(session: NicSession) -> None:
            seen.append(bed.stands())
            end_moves(session)

        with pytest.MonkeyPatch.context() as noting:
            noting.setattr(NicSession, "end_moves", ends)
            with pytest.raises(OperatorError, match=why):
                bed.order("disarm", None)
        assert seen == [{"eth0": OFF, "eth1": OFF}] * 2
        bed.order("disarm", None)
        bed.killed()
        assert bed.stands() == {"eth0": OFF, "eth1": OFF}

    @pytest.mark.parametrize("nic", ["eth0", None])
    def test_a_full_disk(self, bed: Simulated, nic: str | None) -> None:
        bed.disk.full = True
        with pytest.raises(OperatorError, match="No space left on device") as caught:
            bed.order("disarm", nic)
        assert f"{nic or 'every interface'} is disarmed" in caught.value.message
        assert bed.stands() == {"eth0": OFF, "eth1": ON if nic else OFF}

    def test_counters_that_cannot_be_read(
        self, bed: Simulated, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(NicWatch, "look_at_reads", refuse(errno.EPERM))
        with pytest.raises(OperatorError, match="is disarmed, but it could not be read"):
            bed.order("disarm", None)
        assert bed.stands() == {"eth0": OFF, "eth1": OFF}

    def test_a_bug(self, bed: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
        def end_moves(session: NicSession) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(NicSession, "end_moves", end_moves)
        with pytest.raises(ZeroDivisionError):
            bed.order("disarm", "eth1")
        assert bed.stands() == {"eth0": ON, "eth1": OFF}
        assert bed.service.orders.armed("eth1") is False


def test_three_names_in_a_ring_pause_one_nic_only(tmp_path: Path) -> None:
    """The pause goes with its NIC, and not on from name to name."""
    with simulated(tmp_path, nics=3) as bed:
        bed.order("pause", "eth0")
        bed.renames(eth0="eth1", eth1="eth2", eth2="eth0")
        assert bed.stands() == {"eth0": ON, "eth1": PAUSED, "eth2": ON}


def test_a_pause_goes_along_to_a_new_name_though_the_disk_is_full(tmp_path: Path) -> None:
    with simulated(tmp_path) as bed:
        bed.order("pause", "eth0")
        bed.disk.full = True
        bed.renames(eth0="wan0")
        assert bed.stands() == {"wan0": PAUSED}


@pytest.mark.parametrize(
    ("before", "order", "after", "stands"),
    [
        (False, None, True, ON),
        (True, None, False, OFF),
        (False, "disarm", True, OFF),
        (False, "arm", False, ON),
        (True, "arm", False, ON),
        (True, "pause", True, PAUSED),
    ],
)
def test_the_policy_arms_and_disarms_where_no_operator_has(
    tmp_path: Path, before: bool, order: str | None, after: bool, stands: tuple[bool, bool]
) -> None:
    with simulated(tmp_path, text=text_of(armed=before)) as bed:
        if order is not None:
            bed.order(order)
        bed.reload(text_of(armed=after))
        assert bed.stands() == {"eth0": stands}
        bed.killed()
        assert bed.stands() == {"eth0": stands}


def test_after_a_pause_it_stands_as_the_policy_says_by_then(tmp_path: Path) -> None:
    with simulated(tmp_path, text=text_of()) as bed:
        bed.order("pause")
        bed.reload(text_of(armed=False))
        bed.order("resume")
        assert bed.stands() == {"eth0": (False, False)}


def test_what_is_to_be_disarmed_is_so_before_another_nic_is_armed(tmp_path: Path) -> None:
    """Arming may fail, or take long."""
    only_first = text_of().replace("name: '*' }, armed: true", "name: eth0 }, armed: true")
    with simulated(tmp_path, nics=2, text=only_first.replace("eth0", "eth1")) as bed:
        bed.reload(only_first)
        assert [(each.kind, each.nic) for each in bed.said("arm", "disarm")] == [
            ("disarm", "eth1"), ("arm", "eth0"),
        ]  # fmt: skip


def test_what_was_armed_on_the_command_line_stays_armed() -> None:
    leaves = InterfaceRule("*", "test:1", armed=False, filters_max=None, filters_reserve=0)
    policy = Policy((leaves,), (RULE,), "auto", 64, 0, ())
    given = Given(lambda: policy, ("a*",))
    assert [given.armed(policy, replace(NIC, name=name)) for name in ("a1", "b")] == [True, False]
