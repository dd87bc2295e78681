# SPDX-License-Identifier: GPL-2.0-or-later
"""An append-only file of records, whole after a kill, a torn write or a full disk at any byte.

A line is the CRC-32 of a record in hexadecimal, a blank, and the record as a JSON list. A record
that was cut short is the last line, and is removed; any other line with a wrong checksum is
ignored, and the file is kept as `NAME.damaged`. A file that has grown is written anew with what
still holds, a few records with each append, and takes the old one's place when it is whole.

The first record names the format: `["format", name, version]`. A file of another format is set
aside as `NAME.unknown`, and an empty one takes its place.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from atfnd.trust import open_regular

__all__ = ["Format", "Record", "RecordFile", "Unrecorded"]

Record = list[Any]  # of what JSON can hold

_GROWTH_BYTES = 1 << 20
_COPIED = 8  # records with each append, which stays short for it

_FORMAT = "format"

_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder every time


class Unrecorded(OSError):
    """A record could not be written: what it announces must not be done."""


class Format(NamedTuple):
    """Which records a file has, and what they mean. Another meaning is another version."""

    name: str
    version: int


class RecordFile:
    """OSError: it cannot be read, not be opened to be written, or is no regular file.

    `take` is given each record that the file has, in order. ValueError out of it: the record has
    none of the shapes of this format, and counts as `damaged` with the lines that say nothing.
    `unknown` is the format of a file that was set aside, else None.

    `held` yields the records of what holds now. The next one is taken whenever a record is
    appended, before that one counts, so it must not yield what has ceased to hold.
    """

    def __init__(
        self,
        path: Path,
        format_: Format,
        take: Callable[[Record], None],
        held: Callable[[], Iterator[Record]],
    ) -> None:
        self._path, self._fresh_path = path, path.with_suffix(".new")
        self._format, self._held = format_, held
        self._fresh = -1
        self._left: Iterator[Record] = iter(())
        self._room = _GROWTH_BYTES
        self._behind = self._missed = False
        self.unknown: str | None = None
        self._file = _opened(path)
        try:
            self._read(take)
        except BaseException:
            os.close(self._file)
            raise
        _sync_folder(path)

    def _read(self, take: Callable[[Record], None]) -> None:
        text = _all_of(self._file)
        records, whole, self.damaged = _decoded(text)
        if (other := _format_of(records, self._format)) is not None:
            self.unknown = other
            self._path.replace(self._path.with_suffix(".unknown"))
            os.close(self._file)
            self._file = _opened(self._path)
            text, records, whole, self.damaged = b"", [], 0, 0
        for record in records:
            if record[0] == _FORMAT:
                continue
            try:
                take(record)
            except ValueError:
                self.damaged += 1
        if self.damaged:
            with suppress(OSError):  # the disk is full
                _write_new(self._path.with_suffix(".damaged"), text)
        os.ftruncate(self._file, whole)
        self._size = whole
        if not text[:whole].endswith(b"\n") and whole:
            self._write(b"\n")  # alone it may be missing
        if not whole:
            with suppress(OSError):  # the disk is full: later writes will show it
                self._write(_encoded([_FORMAT, *self._format]))

    def trouble(self) -> str | None:
        """What in the file could not be taken over, as a sentence. None: all of it was."""
        if self.unknown is not None:
            kept = self._path.with_suffix(".unknown")
            known = "{} {}".format(*self._format)
            return (
                f"{self._path}: set aside as {kept.name}: it is of format {self.unknown}, "
                f"and this atfnd reads {known}"
            )
        if self.damaged:
            kept = self._path.with_suffix(".damaged")
            return f"{self._path}: {self.damaged} lines could not be read; kept as {kept.name}"
        return None

    def append(self, record: Record, *, sync: bool) -> None:
        """Returns when the record is in the file; with `sync`, on the disk. Unrecorded: it is
        not. A file that lacks what was noted is written anew first: the record may build on
        that."""
        if self._missed:
            self.compact(sync=True)
        if self._missed:
            raise Unrecorded(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        line, before = _encoded(record), self._size
        try:
            self._write(line)
            if sync:
                os.fsync(self._file)
        except OSError as refusal:
            self._cut(before)  # else it is read at the next start, and was never done
            raise Unrecorded(refusal.errno, refusal.strerror, str(self._path)) from refusal
        self._room -= len(line)
        if self._room < 0:
            with self._anew():
                if self._fresh < 0:
                    self._begin()
                done = self._copy(_COPIED)
                _write_whole(self._fresh, line)
                if done:
                    self._replace(sync)

    def note(self, record: Record) -> None:
        """For what is so already: if the file cannot be written now, its next rewrite will have
        it."""
        try:
            self.append(record, sync=False)
        except Unrecorded:
            self._missed = True

    def compact(self, *, sync: bool) -> None:
        """Write what holds, at once. If the disk is full, the file stays as it is until
        `catch_up`."""
        self._behind = True
        with self._anew():
            self._begin()
            while not self._copy(_COPIED):
                pass
            self._replace(sync)
            self._missed = False

    def catch_up(self) -> None:
        """Try `compact` again if the disk refused it."""
        if self._behind:
            self.compact(sync=True)

    def close(self) -> None:
        os.close(self._file)
        if self._fresh >= 0:
            os.close(self._fresh)

    def _write(self, line: bytes) -> None:
        """Write all of it or nothing: a part of a line would spoil the next one."""
        try:
            _write_whole(self._file, line)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    def _cut(self, size: int) -> None:
        """Take back what was written behind this, if anything was."""
        if self._size > size:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            self._size = size

    @contextmanager
    def _anew(self) -> Iterator[None]:
        """Copy the file. If the disk has no room for a second file, the attempt ends, until this
        one has grown again."""
        try:
            yield
        except OSError:
            if self._fresh >= 0:
                os.close(self._fresh)
            self._fresh, self._room = -1, _GROWTH_BYTES
            with suppress(OSError):
                self._fresh_path.unlink()

    def _begin(self) -> None:
        self._fresh = _made(self._fresh_path)
        self._left = self._held()
        _write_whole(self._fresh, _encoded([_FORMAT, *self._format]))

    def _copy(self, most: int) -> bool:
        """True: nothing is left to copy."""
        for _ in range(most):
            record = next(self._left, None)
            if record is None:
                return True
            _write_whole(self._fresh, _encoded(record))
        return False

    def _replace(self, sync: bool) -> None:
        if sync:
            os.fsync(self._fresh)
        self._fresh_path.replace(self._path)
        os.close(self._file)
        self._file, self._fresh = self._fresh, -1
        self._behind = False
        self._size = os.fstat(self._file).st_size
        self._room = max(_GROWTH_BYTES, self._size)
        if sync:
            _sync_folder(self._path)


def _opened(path: Path) -> int:
    """OSError: it is a link, or no regular file."""
    return open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW)


def _made(path: Path) -> int:
    """A new, empty file that replaces what is there."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


def _write_new(path: Path, text: bytes) -> None:
    file = _made(path)
    try:
        _write_whole(file, text)
    finally:
        os.close(file)


def _all_of(file: int) -> bytes:
    with os.fdopen(os.dup(file), "rb") as reader:
        return reader.read()


def _format_of(records: list[Record], ours: Format) -> str | None:
    """The format of a file that is not ours, in its own words. None: it is ours, or the record that
    names it was damaged."""
    if not records or records[0][0] != _FORMAT or records[0][1:] == list(ours):
        return None
    return " ".join(map(str, records[0][1:]))


def _encoded(record: Record) -> bytes:
    text = _json(record).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def _decoded(text: bytes) -> tuple[list[Record], int, int]:
    """Its records; how many bytes of it are lines, good ones or bad; how many are bad."""
    records, whole, damaged = [], 0, 0
    *lines, cut_short = text.split(b"\n")
    for line in lines:
        record = _record(line)
        whole += len(line) + 1
        if record is None:
            damaged += 1
        else:
            records.append(record)
    if (record := _record(cut_short)) is not None:
        records.append(record)
        whole += len(cut_short)
    return records, whole, damaged


def _record(line: bytes) -> Record | None:
    sum_, _, text = line.partition(b" ")
    if sum_ != b"%08x" % zlib.crc32(text):
        return None
    try:
        record = json.loads(text)
    except ValueError:
        return None
    return record if isinstance(record, list) and record else None


def _write_whole(file: int, line: bytes) -> None:
    """OSError(ENOSPC): only a part of it went in."""
    if os.write(file, line) != len(line):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _sync_folder(path: Path) -> None:
    """Sync a file that is new, or has replaced another one, to the disk with its folder."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
