# SPDX-License-Identifier: GPL-2.0-or-later
"""What the operator said by `atfnctl`, by interface: armed, disarmed, paused. It outlives daemon
and device, because a kill switch that a crash undoes is useless. It does not outlive a power cycle:
then the policy counts.

A `RecordFile`: `["arm", nic]`, `["disarm", nic]`, `["disarm", "*"]` (all, also those to come),
`["pause", nic]`, `["resume", nic]`. A file that was damaged or of an unknown format reads as
`["disarm", "*"]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from atfnd.program.journals.record_file import Format, Record, RecordFile

__all__ = ["ALL", "OperatorJournal"]

FORMAT = Format("orders", 1)

ALL = "*"


class OperatorJournal:
    """The last order for each interface. Unrecorded: it holds for this run only. `trouble` says
    what in the file could not be taken over."""

    def __init__(self, path: Path) -> None:
        self._armed: dict[str, bool] = {}
        self._paused: set[str] = set()
        self._others: bool | None = None  # those that are not named
        self._file = RecordFile(path, FORMAT, self._take_record, self._records)
        self.trouble = self._file.trouble()
        if self.trouble:
            self._take("disarm", ALL)
        self._file.compact(sync=True)

    def _take_record(self, record: Record) -> None:
        """A record of the file. ValueError: its shape is none that we write."""
        match record:
            case ["arm" | "disarm" | "pause" | "resume" as verb, str() as nic]:
                self._take(verb, nic)
            case _:
                raise ValueError(record)

    def _take(self, verb: str, nic: str) -> None:
        if verb == "disarm" and nic == ALL:
            self._armed.clear()
            self._paused.clear()
            self._others = False
        elif verb in ("arm", "disarm"):
            self._armed[nic] = verb == "arm"
            self._paused.discard(nic)
        elif verb == "pause":
            self._paused.add(nic)
        elif verb == "resume":
            self._paused.discard(nic)

    def _records(self) -> Iterator[Record]:
        if self._others is False:
            yield ["disarm", ALL]
        for nic in list(self._armed):
            if nic in self._armed:
                yield ["arm" if self._armed[nic] else "disarm", nic]
        for nic in sorted(self._paused):
            if nic in self._paused:
                yield ["pause", nic]

    def say(self, verb: str, nic: str) -> None:
        """`arm`, `disarm`, `pause` or `resume` an interface, or `disarm` ALL."""
        self._take(verb, nic)
        self._file.append([verb, nic], sync=True)

    def armed(self, nic: str) -> bool | None:
        """None: no order was given, and the policy counts."""
        return self._armed.get(nic, self._others)

    def paused(self, nic: str) -> bool:
        return nic in self._paused

    def close(self) -> None:
        self._file.close()
