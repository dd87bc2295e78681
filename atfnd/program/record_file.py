# SPDX-License-Identifier: GPL-2.0-or-later
"""An append-only file of records, whole after a kill, a torn write or a full disk at any byte.

A line is the CRC-32 of a record in hexadecimal, a blank, and the record as a JSON list. What was
cut short is the last line, and is cut off; any other line whose checksum is wrong says nothing, and
the file is kept as `NAME.damaged`. A file that has grown is written anew with what still holds, a
few records with each append, and takes the old one's place when it is whole.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

__all__ = ["Record", "RecordFile", "Unrecorded"]

Record = list[Any]  # of what JSON knows

_GROWTH_BYTES = 1 << 20
_COPIED = 8  # records with each append, which stays short for it

_json = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps makes an encoder every time


class Unrecorded(OSError):
    """A record could not be written: what it announces must not be done."""


class RecordFile:
    """`records` is what the file says, in order; `damaged` counts lines that say nothing. OSError:
    it cannot be read, or not be opened to be written.

    `held` yields the records of what holds now. It is asked for the next one whenever a record is
    appended, before that one counts, and must not yield what has ceased to hold.
    """

    def __init__(self, path: Path, held: Callable[[], Iterator[Record]]) -> None:
        self._path, self._fresh_path = path, path.with_suffix(".new")
        self._held = held
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._fresh = -1
        self._left: Iterator[Record] = iter(())
        self._room = _GROWTH_BYTES
        text = path.read_bytes()
        self.records, whole, self.damaged = _decoded(text)
        if self.damaged:
            with suppress(OSError):  # no room for it
                path.with_suffix(".damaged").write_bytes(text)
        os.ftruncate(self._file, whole)
        self._size = whole
        if not text[:whole].endswith(b"\n") and whole:
            self._write(b"\n")  # alone it may be missing
        _sync_folder(path)

    def append(self, record: Record, *, sync: bool) -> None:
        """Returns when it is in the file; with `sync`, on the disk. Unrecorded: it is not."""
        line = _encoded(record)
        try:
            self._write(line)
            if sync:
                os.fsync(self._file)
        except OSError as refusal:
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

    def compact(self, *, sync: bool) -> None:
        """Write what holds, at once. If the disk is full, the file stays as it is."""
        with self._anew():
            self._begin()
            while not self._copy(_COPIED):
                pass
            self._replace(sync)

    def close(self) -> None:
        os.close(self._file)
        if self._fresh >= 0:
            os.close(self._fresh)

    def _write(self, line: bytes) -> None:
        """All of it or nothing: a part of a line would spoil the next one."""
        try:
            _write_whole(self._file, line)
        except OSError:
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(line)

    @contextmanager
    def _anew(self) -> Iterator[None]:
        """A disk that has no room for a second file ends the attempt, until this one has grown
        again."""
        try:
            yield
        except OSError:
            if self._fresh >= 0:
                os.close(self._fresh)
            self._fresh, self._room = -1, _GROWTH_BYTES
            with suppress(OSError):
                self._fresh_path.unlink()

    def _begin(self) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._fresh = os.open(self._fresh_path, flags, 0o600)
        self._left = self._held()

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
        self._size = os.fstat(self._file).st_size
        self._room = max(_GROWTH_BYTES, self._size)
        if sync:
            _sync_folder(self._path)


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
    """A file that is new, or has taken another's place, is on the disk with its folder."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
