# SPDX-License-Identifier: GPL-2.0-or-later
"""What a real NIC's filters can do: expected of its driver, or proven by inserting and removing.

The probe writes filters that no packet matches (documentation addresses, port 9) to queue 0 at free
locations, and takes each out again. `ethtool -k` is not trusted: igb says on and refuses all. Most
drivers write a line into the kernel's log for a filter that they refuse, so nothing is tried of
which the answer follows from another one.
"""

from __future__ import annotations

import errno
import time
from contextlib import ExitStack
from dataclasses import replace

from atfnd.errors import refusable
from atfnd.model import Actuator, Caps, Match, Protocol
from atfnd.nic import Claims
from atfnd.nic.drivers import ALL, FlowTypes, Masks, Overwrite
from atfnd.nic.ethtool.filters import EthtoolNtuple

__all__ = ["expected", "probed"]

_SRC = {4: bytes((192, 0, 2, 1)), 6: bytes.fromhex("20010db8") + bytes(11) + b"\1"}
_DST = {4: bytes((192, 0, 2, 2)), 6: bytes.fromhex("20010db8") + bytes(11) + b"\2"}
_USUAL = (Protocol.TCP, Protocol.UDP)
_SCTP = 4, int(Protocol.SCTP)
_DISCARD = 9  # the port of RFC 863
_WRONG = ("EINVAL", "EOPNOTSUPP")  # the driver does not take such a filter, or not there
_NOTHING_DONE = ("EINVAL", "EOPNOTSUPP", "EPERM", "ENOSPC")  # else the NIC may have it nevertheless
_UNNAMED = "the journal cannot be written"
# They may work at another time.
_NOT_NOW = (
    "ENOSPC", "EBUSY", "EAGAIN", "EINTR", "ENETDOWN", "ENOMEM", "ETIMEDOUT", _UNNAMED,
)  # fmt: skip
_SHOWN_S = 0.25  # until an asynchronous driver shows what it accepted
_LOOK_S = 0.002


def expected(ntuple: EthtoolNtuple) -> Caps:
    """From what the driver says about itself, and the table of drivers. Writes nothing."""
    driver = ntuple.driver
    try:
        ntuple.rxnfc.count()
        chooses, slots = ntuple.location_any(), ntuple.slots()
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return _caps(ntuple, None, f"{driver.name} has no filter table")
    if not driver.filters:
        return _caps(
            ntuple, slots, "; ".join((f"{driver.name} has no 5-tuple filters", *driver.quirks))
        )
    if not slots and not chooses:
        return _caps(ntuple, slots, f"{driver.name} has a filter table of no size")
    if driver.needs_ntuple and not ntuple.rxnfc.ntuple_on():
        return _caps(ntuple, slots, _ntuple_off(ntuple))
    caps = _caps(ntuple, slots, None)
    caps = replace(
        caps,
        filters=True,
        location_any=chooses,
        exact_wins=not chooses,
        actuator=driver.actuator,
        flow_types=driver.types or ALL,
    )
    if not driver.types:
        return replace(caps, why=f"nothing is known of {driver.name}: it is probed once armed")
    return replace(caps, prefix_masks=driver.masks is Masks.ANY)


def probed(ntuple: EthtoolNtuple, claims: Claims | None = None) -> Caps:
    """Insert one filter of each flow type that the driver may take, one that leaves fields open,
    and move one; all are gone afterwards. A capability that is refused only for now (table full,
    link down) stays as expected. `claims` names each filter while it may be there.

    OSError: the NIC is gone, or a filter of the probe could not be removed.
    """
    if not _has_places(ntuple):
        return replace(expected(ntuple), probed=True)
    trial = _Trial(ntuple, claims)
    trial.of_all(ntuple.driver.types or ALL)
    before = expected(ntuple)  # not earlier: the trial found out what chooses locations
    if not trial.accepted:
        if trial.not_now:
            why = next(iter(trial.not_now.values()))
            return replace(before, why=f"filters could not be probed: {why}")
        return _none(ntuple, before, next(iter(trial.refused.values())))
    actuator = ntuple.driver.actuator if ntuple.driver.filters else Actuator.LONG_GAP
    if ntuple.overwrite is Overwrite.REFUSED:
        actuator = Actuator.LONG_GAP
    limits = [f"no {Protocol(protocol).name}/IPv{family} filters ({why})"
              for (family, protocol), why in trial.refused.items()]  # fmt: skip
    if trial.open_refused:
        limits.append(f"filters must name the whole 5-tuple ({trial.open_refused})")
    return replace(
        before,
        filters=True,
        prefix_masks=before.prefix_masks if trial.open_refused is None else not trial.open_refused,
        actuator=actuator,
        flow_types=trial.accepted | (trial.not_now.keys() & (before.flow_types or ALL)),
        asynchronous=ntuple.asynchronous,
        probed=True,
        why=f"{ntuple.driver.name}: {', '.join(limits)}" if limits else None,
    )


def _has_places(ntuple: EthtoolNtuple) -> bool:
    """There is a table, and its size is not zero: igb reports one of size zero."""
    with refusable(errno.EOPNOTSUPP):
        return bool(ntuple.slots()) or ntuple.location_any()
    return False


class _Trial:
    """One probe: filters that are inserted, looked at and removed."""

    def __init__(self, ntuple: EthtoolNtuple, claims: Claims | None) -> None:
        self._ntuple, self._claims = ntuple, claims
        self._asked_for_place = False
        self.accepted: frozenset[tuple[int, int]] = frozenset()
        self.refused: dict[tuple[int, int], str] = {}
        self.not_now: dict[tuple[int, int], str] = {}
        self.open_refused: str | None = None  # None: not known, empty: it was accepted

    def of_all(self, types: FlowTypes) -> None:
        """Each of them, but those whose refusal follows from another one."""
        for kind in sorted(types, key=lambda kind: (kind[1] == Protocol.SCTP, kind)):
            if not self._is_refused(kind):
                self._of(*kind)

    def _is_refused(self, kind: tuple[int, int]) -> bool:
        """A NIC that refuses TCP and UDP over IPv4 takes no 5-tuples; over IPv6, none of those."""
        no = self.refused.keys()
        return any(no >= {(family, each) for each in _USUAL} for family in (4, kind[0])) or (
            kind[1] == Protocol.SCTP and _SCTP in no
        )

    def _of(self, family: int, protocol: int) -> None:
        src, dst = _SRC[family], _DST[family]
        bits = len(src) * 8
        exact = Match(family, protocol, src, bits, dst, bits, _DISCARD, _DISCARD)
        with ExitStack() as undo:
            location, why = self._insert(undo, exact)
            if location is None:
                (self.not_now if why in _NOT_NOW else self.refused)[family, protocol] = why
                return
            first, self.accepted = not self.accepted, self.accepted | {(family, protocol)}
            if first:
                with ExitStack() as soon:  # in a small table it has the one place of its kind
                    self._try_open(soon, exact)
                self._try_move(undo, exact, location)

    def _try_open(self, undo: ExitStack, exact: Match) -> None:
        """Beside the exact one: some drivers have one set of fields for all."""
        _, why = self._insert(undo, exact._replace(src=None, src_prefix=0, src_port=None))
        self.open_refused = None if why in _NOT_NOW else why

    def _try_move(self, undo: ExitStack, exact: Match, location: int) -> None:
        """Learn what an insert does where this match has a filter already."""
        ntuple = self._ntuple
        if ntuple.rxnfc.rings() < 2 or ntuple.driver.overwrite is Overwrite.REFUSED:
            return
        place = None if ntuple.location_any() else location
        try:
            moved = ntuple.rxnfc.insert(exact, 1, place)
        except OSError as error:
            if _name(error) not in _NOT_NOW:
                ntuple.overwrite = Overwrite.REFUSED
            return
        if moved != location:
            undo.callback(_remove, ntuple, moved)  # it takes one match twice
            ntuple.overwrite = Overwrite.ADDED
        elif place is None:
            ntuple.overwrite = Overwrite.BY_MATCH
        elif ntuple.overwrite is Overwrite.TRY:
            ntuple.overwrite = Overwrite.GAP

    def _insert(self, undo: ExitStack, match: Match) -> tuple[int | None, str]:
        """Insert, and leave the removal to `undo`: the location, or why the filter is not there."""
        ntuple, claims = self._ntuple, self._claims
        if claims is not None:
            try:
                claims.claim(match)
            except OSError:
                return None, _UNNAMED
        try:
            location = self._written(match)
        except OSError as error:
            if error.errno == errno.ENODEV:
                raise
            # An asynchronous driver that is busy is asked again, and may have done it before.
            if claims is not None and not ntuple.asynchronous and _name(error) in _NOTHING_DONE:
                claims.release(match)
            return None, _name(error)
        if claims is not None:
            undo.callback(claims.release, match)
        undo.callback(_remove, ntuple, location)
        there = ntuple.filter(location)
        end = time.monotonic() + _SHOWN_S
        while there is None and time.monotonic() < end:
            time.sleep(_LOOK_S)
            there = ntuple.filter(location)
            ntuple.asynchronous |= there is not None
        if there is None:
            return None, "accepted, and then not there"
        if there.match != match:
            return None, "accepted as another filter"
        return location, ""

    def _written(self, match: Match) -> int:
        """Some drivers say that they choose locations, and refuse all but ours."""
        ntuple = self._ntuple
        try:
            return ntuple.patiently(lambda: ntuple.insert(match, 0))
        except OSError as refusal:
            asked, self._asked_for_place = self._asked_for_place, True
            if asked or self.accepted or not ntuple.location_any() or _name(refusal) not in _WRONG:
                raise
        return ntuple.patiently(lambda: ntuple.insert_chosen(match, 0))


def _name(error: OSError) -> str:
    if error.errno == errno.EOPNOTSUPP:  # which errorcode calls ENOTSUP
        return "EOPNOTSUPP"
    return errno.errorcode.get(error.errno or 0, str(error))


def _remove(ntuple: EthtoolNtuple, location: int) -> None:
    with refusable(errno.ENOENT):
        ntuple.delete(location)


def _caps(ntuple: EthtoolNtuple, slots: int | None, why: str | None) -> Caps:
    """No filters, as far as is known."""
    return Caps(
        driver=ntuple.driver.name,
        filters=False,
        filter_slots=slots,
        prefix_masks=False,
        location_any=False,
        rss_table=False,
        queue_cpu=False,
        actuator=Actuator.NONE,
        flow_types=frozenset(),
        asynchronous=ntuple.asynchronous,
        probed=False,
        why=why,
    )


def _none(ntuple: EthtoolNtuple, before: Caps, why: str) -> Caps:
    """Every flow type was refused."""
    driver, on = ntuple.driver, ntuple.rxnfc.ntuple_on()
    words = f"{driver.name}: 5-tuple filters are refused ({why})"
    if not on and driver.needs_ntuple:
        words = _ntuple_off(ntuple)
    elif not on and driver.filters:
        words += f"; {_ntuple_off(ntuple, ', which may be why')}"
    elif driver.gates:
        words += f"; {'; '.join(driver.gates_of(ntuple.nic, ntuple_on=on))}"
    none = _caps(ntuple, before.filter_slots, words)
    gated = driver.filters and not on and not ntuple.ntuple_fixed()  # it is worth opening
    return replace(none, probed=True, actuator=driver.actuator if gated else Actuator.NONE)


def _ntuple_off(ntuple: EthtoolNtuple, guess: str = "") -> str:
    if ntuple.ntuple_fixed():
        return f"ntuple filters are off{guess}, and cannot be switched on ([fixed] in ethtool -k)"
    return f"ntuple filters are off{guess}: ethtool -K {ntuple.nic} ntuple on"
