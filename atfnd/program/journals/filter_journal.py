# SPDX-License-Identifier: GPL-2.0-or-later
"""Which filters in which NIC are ours, written before the filter is: what undo and a restart go by.

A `RecordFile`: `["+", nic, match, queue]` before an insert, `["@", nic, match, location]` after it,
`["-", nic, match]` after a delete or a refusal; `["=", nic, match, location, queues]` is all that
is known of one: before it gets another queue, which may come with another location, and after that
was refused. The file is written without fsync, because filters do not outlive the power either. A
filter that was killed between insert and location is known by its match and its queues alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from atfnd.model import Filter, Match
from atfnd.nic import Claims
from atfnd.program.journals.record_file import Format, Record, RecordFile

__all__ = ["FilterJournal"]

FORMAT = Format("filters", 1)

# The location, None as long as it is not known. Then the queue that the filter may have had before,
# if it is being turned, and the one it has; without a queue, it is ours on any.
_Held = tuple[int | None, ...]
_PROBED = 0, 1  # the queues that a probe inserts to


def _encode(match: Match) -> Record:
    return [field.hex() if isinstance(field, bytes) else field for field in match]


def _decode(fields: Record) -> Match:
    """ValueError: not the fields of a match."""
    match fields:
        case [
            int() as family, int() | None as protocol,
            str() | None as src, int() as src_prefix, str() | None as dst, int() as dst_prefix,
            int() | None as src_port, int() | None as dst_port,
        ]:  # fmt: skip
            return Match(
                family, protocol,
                None if src is None else bytes.fromhex(src), src_prefix,
                None if dst is None else bytes.fromhex(dst), dst_prefix,
                src_port, dst_port,
            )  # fmt: skip
    raise ValueError(fields)


class FilterJournal:
    """Matches we have in NICs. Unrecorded: the record could not be written ahead: do not do what it
    announces.

    A match that is named is ours, from this run or an earlier one, until it is released. `trouble`
    says what could not be taken over.
    """

    def __init__(self, path: Path) -> None:
        self._now: dict[str, dict[Match, _Held]] = {}
        self._file = RecordFile(path, FORMAT, self._take, self._held)
        self.trouble = self._file.trouble()
        self._file.compact(sync=False)

    def _take(self, record: Record) -> None:
        """A record of the file. ValueError: its shape is none that we write."""
        match record:
            case [str() as sign, str() as nic, list() as fields, *rest]:
                self._note(sign, nic, _decode(fields), *rest)
            case _:
                raise ValueError(record)

    def _note(self, sign: str, nic: str, match: Match, *rest: Any) -> None:
        ours = self._now.setdefault(nic, {})
        before = ours.get(match, (None,))[1:]
        match sign, rest:
            case "+", [int() | None as queue]:
                ours[match] = (None,) if queue is None else (None, queue)
            case "@", [int() as location]:
                ours[match] = (location, *before)
            case "=", [int() | None as location, [*queues]] if all(
                isinstance(queue, int) for queue in queues
            ):
                ours[match] = (location, *queues)
            case "-", []:
                ours.pop(match, None)
            case _:
                raise ValueError((sign, *rest))

    def _held(self) -> Iterator[Record]:
        for nic, match in [(nic, match) for nic, ours in self._now.items() for match in ours]:
            if held := self._now.get(nic, {}).get(match):
                yield ["=", nic, _encode(match), held[0], list(held[1:])]

    def _append(self, sign: str, nic: str, match: Match, *rest: int | list[int] | None) -> None:
        self._file.append([sign, nic, _encode(match), *rest], sync=False)
        self._note(sign, nic, match, *rest)

    def _append_if_possible(
        self, sign: str, nic: str, match: Match, *rest: int | list[int]
    ) -> None:
        self._note(sign, nic, match, *rest)
        self._file.note([sign, nic, _encode(match), *rest])

    @property
    def left(self) -> dict[str, dict[Match, int | None]]:
        """The named matches, by NIC, each with its location, None where that is not known."""
        return {nic: {each: held[0] for each, held in o.items()} for nic, o in self._now.items()}

    def named(self, nic: str) -> Collection[Match]:
        """The matches that are named in this NIC, as they are now."""
        return self._now.get(nic, {}).keys()

    def names(self, nic: str, match: Match | None = None) -> bool:
        """This match is named in this NIC; without one, any is."""
        ours = self._now.get(nic, {})
        return bool(ours) if match is None else match in ours

    def location(self, nic: str, match: Match) -> int | None:
        """Its location. None: not known, or the match is not named."""
        return self._now.get(nic, {}).get(match, (None,))[0]

    def claim(self, nic: str, match: Match, queue: int | None = None) -> None:
        """Before the insert of a match that is not named: only the one that claims it may release
        it. With None it is ours `anywhere`."""
        self._append("+", nic, match, queue)

    def locate(self, nic: str, match: Match, location: int) -> None:
        """After the write: a filter of the same match at another location is not ours."""
        self._append_if_possible("@", nic, match, location)

    def turn(self, nic: str, match: Match, old: int | None, queue: int) -> None:
        """Before it gets another queue than `old`, the one that the NIC reports: until `locate`, a
        filter found on either queue is ours. A filter found on a third queue is not."""
        self._append("=", nic, match, None, [queue] if old is None else [old, queue])

    def stays(self, nic: str, match: Match, location: int, queue: int) -> None:
        """After another queue was refused: the filter was read, is there, and has this queue."""
        self._append_if_possible("=", nic, match, location, [queue])

    def ours(self, nic: str, filters: Iterable[Filter]) -> list[Filter]:
        """Those of the NIC's filters that are named. Of two with one match and no known location,
        the one at the higher location: we insert from the top of the table down. Of a match that is
        ours `anywhere`, all."""
        named = self._now.get(nic, {})
        found = {
            each.location if self.anywhere(nic, each.match) else each.match: each
            for each in sorted(filters, key=lambda each: each.location)
            if each.match in named
            and named[each.match][0] in (None, each.location)
            and each.queue in (named[each.match][1:] or self._any(nic, each))
        }
        return list(found.values())

    def _any(self, nic: str, there: Filter) -> Collection[int | None]:
        """The queues of a match that was claimed without one."""
        return _PROBED if self.anywhere(nic, there.match) else (there.queue,)

    def anywhere(self, nic: str, match: Match | None) -> bool:
        """Every filter of this match on a queue that a probe inserts to is ours, at any location: a
        probe was begun. It is released when the NIC lists none."""
        return match is not None and self._now.get(nic, {}).get(match) == (None,)

    def release(self, nic: str, match: Match) -> None:
        """After the delete, after a refused insert that claimed it, or when the filter that is
        there was read and is not ours."""
        self._append_if_possible("-", nic, match)

    def claims(self, nic: str) -> Claims:
        """Of one NIC, for filters that are taken out at once. What an earlier run claimed stays
        named: a filter of it may be there beside the new one."""
        before = frozenset(self.left.get(nic, ()))

        def claim(match: Match) -> None:
            if match not in before:
                self.claim(nic, match)

        def release(match: Match) -> None:
            if match not in before:
                self.release(nic, match)

        return Claims(claim, release)

    def rename(self, old: str, new: str) -> None:
        """An interface has a new name; its filters are now named under that."""
        self._now.setdefault(new, {}).update(self._now.pop(old, {}))
        self._file.compact(sync=False)

    def catch_up(self) -> None:
        """Write a new name that the disk refused to take."""
        self._file.catch_up()

    def close(self) -> None:
        self._file.close()
