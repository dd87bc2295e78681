# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings we changed: what they were before, and what we wrote last. An undo reads it.

A `RecordFile`: `["=", nic, setting, original]` before the first write of a setting, `[">", nic,
setting, value]` before each write: a setting outlives the daemon, and nothing in it says who wrote
it. The original and the first value are fsynced. Later values are not: what a killed process wrote
is in the page cache, and no setting outlives the power. `["!", nic, setting, value]` after a write:
what the kernel has now; `["-", nic, setting]` when it is ours no more; `["*", nic, setting,
original, ...]` is all that is known of one.

Also remembered are settings that another program changed, until they are taken back: `["~", nic,
setting]`, `["+", nic]`; and the life of a NIC (`NicWatch.life`) in which the values were written:
`["&", nic, life]`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from atfnd.program.journals.record_file import Format, Record, RecordFile, Unrecorded

__all__ = ["OwnedSetting", "UndoJournal"]

FORMAT = Format("originals", 1)


class OwnedSetting(NamedTuple):
    """One setting that is ours."""

    original: str  # before our first write
    wrote: str | None  # last; None: we were about to write
    earlier: str | None = None  # what it was before that, until the last write is known done

    def ours(self, now: str) -> bool:
        """It has the value that we wrote, or the one before that. If we have not written yet and it
        no longer has its value from before, another program wrote it."""
        return now == self.original if self.wrote is None else now in (self.wrote, self.earlier)


class UndoJournal:
    """Original values by NIC and setting. Unrecorded: the record could not be written ahead, and
    what it announces must not be done. `trouble` says what could not be taken over."""

    def __init__(self, path: Path) -> None:
        self._held: dict[str, dict[str, OwnedSetting]] = {}
        self._manual: dict[str, set[str]] = {}
        self._lives: dict[str, str] = {}
        self._file = RecordFile(path, FORMAT, self._take_record, self._records)
        self.trouble = self._file.trouble()
        self._lives = {nic: life for nic, life in self._lives.items() if self._knows(nic)}
        self._file.compact(sync=True)

    def _take_record(self, record: Record) -> None:
        """A record of the file. ValueError: its shape is none that we write."""
        match record:
            case ["*", str(), str(), str(), str() | None, str() | None]:
                self._take(*record)
            case [str(), str(), *rest] if all(isinstance(each, str) for each in rest):
                self._take(*record)
            case _:
                raise ValueError(record)

    def _take(self, sign: str, nic: str, *rest: str) -> None:
        settings = self._held.setdefault(nic, {})
        match sign, rest:
            case "=", (setting, original):
                settings.setdefault(setting, OwnedSetting(original, None))
                self._manual.get(nic, set()).discard(setting)
            case ">", (setting, value):
                if setting in settings:
                    original, wrote, _ = settings[setting]
                    before = original if wrote is None else wrote
                    settings[setting] = OwnedSetting(original, value, before)
            case "!", (setting, value):
                if setting in settings:
                    settings[setting] = OwnedSetting(settings[setting].original, value)
            case "*", (setting, original, wrote, earlier):
                settings[setting] = OwnedSetting(original, wrote, earlier)
                self._manual.get(nic, set()).discard(setting)
            case "-", (setting,):
                settings.pop(setting, None)
                self._manual.get(nic, set()).discard(setting)
            case "~", (setting,):
                settings.pop(setting, None)
                self._manual.setdefault(nic, set()).add(setting)
            case "+", ():
                self._manual.pop(nic, None)
            case "&", (life,):
                self._lives[nic] = life
            case _:
                raise ValueError((sign, *rest))

    def _records(self) -> Iterator[Record]:
        for nic in list(self._manual):  # before what is held: it ends that
            for setting in sorted(self._manual.get(nic, ())):
                if setting not in self._held.get(nic, {}):
                    yield ["~", nic, setting]
        for nic, setting in [
            (nic, setting) for nic, settings in self._held.items() for setting in settings
        ]:
            if setting in self._held.get(nic, {}):
                yield ["*", nic, setting, *self._held[nic][setting]]
        for nic in list(self._lives):  # also before anything is held: it is not noted again
            if nic in self._lives:
                yield ["&", nic, self._lives[nic]]

    def _knows(self, nic: str) -> bool:
        """Something of it is ours, or left alone."""
        return bool(self._held.get(nic) or self._manual.get(nic))

    def _ahead(self, *record: str, sync: bool = True) -> None:
        self._file.append(list(record), sync=sync)
        self._take(*record)

    def _after(self, *record: str) -> None:
        self._take(*record)
        self._file.note(list(record))

    def note(self, nic: str, setting: str, original: str) -> None:
        """Before the first write of a setting; for a setting that is held already, the first value
        stays."""
        if setting not in self._held.get(nic, {}):
            self._ahead("=", nic, setting, original)

    def rely_on(self, nic: str, setting: str, value: str) -> None:
        """We have not written it, and it has the value that we want: another program's change of it
        is known from now on, unless that cannot be recorded."""
        if setting not in self._held.get(nic, {}):
            with suppress(Unrecorded):
                self._ahead("=", nic, setting, value, sync=False)

    def inherit(self, nic: str, setting: str, held: OwnedSetting) -> None:
        """The same switch by another name: it is ours as that one is."""
        record: Record = ["*", nic, setting, *held]
        self._file.append(record, sync=True)
        self._take_record(record)

    def wrote(self, nic: str, setting: str, value: str) -> None:
        """Before each write of a setting that is held. KeyError: it is not."""
        first = self._held[nic][setting].wrote is None
        self._ahead(">", nic, setting, value, sync=first)

    def confirmed(self, nic: str, setting: str, value: str) -> None:
        """After a write, or when the kernel moved a setting by itself: this is ours now."""
        if setting in self._held.get(nic, {}):
            self._after("!", nic, setting, value)

    def held(self, nic: str) -> dict[str, OwnedSetting]:
        """What is ours on this NIC, in the order it was first written."""
        return dict(self._held.get(nic, {}))

    def nics(self) -> list[str]:
        """NICs with a setting of ours."""
        return [nic for nic, settings in self._held.items() if settings]

    def with_manual(self) -> list[str]:
        """NICs with a setting that is left to another program."""
        return [nic for nic, settings in self._manual.items() if settings]

    def forget(self, nic: str, setting: str) -> None:
        """It was put back, or is gone: then it is not another program's any more, either."""
        if setting in self._held.get(nic, {}) or setting in self._manual.get(nic, ()):
            self._after("-", nic, setting)

    def leave_alone(self, nic: str, setting: str) -> None:
        """Another program changed it: it is theirs, until it is taken back."""
        self._after("~", nic, setting)

    def manual(self, nic: str) -> frozenset[str]:
        """Settings that another program changed after us, and that no operator has taken back."""
        return frozenset(self._manual.get(nic, ()))

    def take_back(self, nic: str) -> None:
        """Settings that were left to other programs may be written again."""
        if self._manual.get(nic):
            self._after("+", nic)

    def life(self, nic: str) -> str | None:
        """In which life of the NIC our values were written. None: it was not noted."""
        return self._lives.get(nic)

    def lives(self, nic: str, life: str) -> None:
        """Note that our values were written in this life."""
        if self._lives.get(nic) != life:
            self._after("&", nic, life)

    def rename(self, old: str, new: str) -> None:
        """An interface has a new name."""
        if settings := self._held.pop(old, None):
            self._held[new] = {**self._held.get(new, {}), **settings}
        if manual := self._manual.pop(old, None):
            self._manual.setdefault(new, set()).update(manual)
        if life := self._lives.pop(old, None):
            self._lives[new] = life
        self._file.compact(sync=True)

    def rename_settings(self, nic: str, names: Mapping[str, str]) -> None:
        """Some settings have new names: `names` has them by the old ones."""
        held, manual = self._held.get(nic, {}), self._manual.get(nic, set())
        self._held[nic] = {names.get(name, name): how for name, how in held.items()}
        self._manual[nic] = {names.get(name, name) for name in manual}
        self._file.compact(sync=True)

    def catch_up(self) -> None:
        """Write a new name that the disk refused to take."""
        self._file.catch_up()

    def close(self) -> None:
        self._file.close()
