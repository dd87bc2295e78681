# SPDX-License-Identifier: GPL-2.0-or-later
"""Knobs we changed: what they were before, and what we wrote last. Read to undo it.

A `RecordFile`: `["=", nic, knob, original]` before the first write of a knob, `[">", nic, knob,
value]` before each write, both fsynced: a knob outlives the daemon and looks like anybody's.
`["!", nic, knob, value]` after a write: what the kernel has now; `["-", nic, knob]` when it is let
go of; `["*", nic, knob, original, ...]` is all that is known of one.

What somebody else moved is remembered, too, until it is taken back: `["~", nic, knob]`, `["+",
nic]`; and which life of a NIC (`NicWatch.life`) the values were written in: `["&", nic, life]`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atfnd.program.record_file import Format, Record, RecordFile, Unrecorded

__all__ = ["Held", "Originals"]

FORMAT = Format("originals", 1)


class Held(NamedTuple):
    """One knob that is ours."""

    original: str  # before our first write
    wrote: str | None  # last; None: we were about to
    earlier: str | None = None  # what it was before that, until the last write is known done

    def ours(self, now: str) -> bool:
        """What it reads now is what we wrote, or what it was before that. What was not written yet
        and reads otherwise than before was written by somebody else."""
        return now == self.original if self.wrote is None else now in (self.wrote, self.earlier)


class Originals:
    """Original values by NIC and knob. Unrecorded: what was to be written ahead is not, and must
    not be done. `trouble` is what could not be taken over, as a sentence."""

    def __init__(self, path: Path) -> None:
        self._held: dict[str, dict[str, Held]] = {}
        self._manual: dict[str, set[str]] = {}
        self._lives: dict[str, str] = {}
        self._file = RecordFile(path, FORMAT, self._take_record, self._records)
        self.trouble = self._file.trouble()
        self._file.compact(sync=True)

    def _take_record(self, record: Record) -> None:
        """A record of the file. ValueError: it is of no shape that is written here."""
        match record:
            case ["*", str(), str(), str(), str() | None, str() | None]:
                self._take(*record)
            case [str(), str(), *rest] if all(isinstance(each, str) for each in rest):
                self._take(*record)
            case _:
                raise ValueError(record)

    def _take(self, sign: str, nic: str, *rest: str) -> None:
        knobs = self._held.setdefault(nic, {})
        match sign, rest:
            case "=", (knob, original):
                knobs.setdefault(knob, Held(original, None))
                self._manual.get(nic, set()).discard(knob)
            case ">", (knob, value):
                if knob in knobs:
                    original, wrote, _ = knobs[knob]
                    knobs[knob] = Held(original, value, original if wrote is None else wrote)
            case "!", (knob, value):
                if knob in knobs:
                    knobs[knob] = Held(knobs[knob].original, value)
            case "*", (knob, original, wrote, earlier):
                knobs[knob] = Held(original, wrote, earlier)
                self._manual.get(nic, set()).discard(knob)
            case "-", (knob,):
                knobs.pop(knob, None)
            case "~", (knob,):
                knobs.pop(knob, None)
                self._manual.setdefault(nic, set()).add(knob)
            case "+", ():
                self._manual.pop(nic, None)
            case "&", (life,):
                self._lives[nic] = life
            case _:
                raise ValueError((sign, *rest))

    def _records(self) -> Iterator[Record]:
        for nic in list(self._manual):  # before what is held: it ends that
            for knob in sorted(self._manual.get(nic, ())):
                if knob not in self._held.get(nic, {}):
                    yield ["~", nic, knob]
        for nic, knob in [(nic, knob) for nic, knobs in self._held.items() for knob in knobs]:
            if knob in self._held.get(nic, {}):
                yield ["*", nic, knob, *self._held[nic][knob]]
        for nic in list(self._lives):
            if nic in self._lives and (self._held.get(nic) or self._manual.get(nic)):
                yield ["&", nic, self._lives[nic]]

    def _ahead(self, *record: str) -> None:
        self._file.append(list(record), sync=True)
        self._take(*record)

    def _after(self, *record: str) -> None:
        """What is so already: a file that cannot be written has it when it is written anew."""
        with suppress(Unrecorded):
            self._file.append(list(record), sync=False)
        self._take(*record)

    def note(self, nic: str, knob: str, original: str) -> None:
        """Before the first write of a knob; of one that is held already, the first one stays."""
        if knob not in self._held.get(nic, {}):
            self._ahead("=", nic, knob, original)

    def wrote(self, nic: str, knob: str, value: str) -> None:
        """Before each write of a knob that is held. KeyError: it is not."""
        self._held[nic][knob]
        self._ahead(">", nic, knob, value)

    def settled(self, nic: str, knob: str, value: str) -> None:
        """After a write, or when the kernel moved a knob by itself: this is ours now."""
        if knob in self._held.get(nic, {}):
            self._after("!", nic, knob, value)

    def held(self, nic: str) -> dict[str, Held]:
        """What is ours on this NIC, in the order it was first written."""
        return dict(self._held.get(nic, {}))

    def nics(self) -> list[str]:
        """NICs with a knob of ours."""
        return [nic for nic, knobs in self._held.items() if knobs]

    def forget(self, nic: str, knob: str) -> None:
        """It is put back, or gone."""
        if knob in self._held.get(nic, {}):
            self._after("-", nic, knob)

    def let_go(self, nic: str, knob: str) -> None:
        """Somebody else moved it: his, until it is taken back."""
        self._after("~", nic, knob)

    def manual(self, nic: str) -> frozenset[str]:
        """Knobs that somebody else moved after us, and that nobody has taken back."""
        return frozenset(self._manual.get(nic, ()))

    def take_back(self, nic: str) -> None:
        """What was let go of may be written again."""
        if self._manual.get(nic):
            self._after("+", nic)

    def life(self, nic: str) -> str | None:
        """In which life of it our values were written. None: it was not noted."""
        return self._lives.get(nic)

    def lives(self, nic: str, life: str) -> None:
        """Note that our values are those of this life."""
        if self._lives.get(nic) != life:
            self._after("&", nic, life)

    def rename(self, old: str, new: str) -> None:
        """An interface has another name now."""
        if knobs := self._held.pop(old, None):
            self._held[new] = {**self._held.get(new, {}), **knobs}
        if manual := self._manual.pop(old, None):
            self._manual.setdefault(new, set()).update(manual)
        if life := self._lives.pop(old, None):
            self._lives[new] = life
        self._file.compact(sync=True)

    def close(self) -> None:
        self._file.close()
