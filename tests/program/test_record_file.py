# SPDX-License-Identifier: GPL-2.0-or-later
"""A file of records: cut at every byte, damaged at every byte, and on a disk that is full."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.program.journals import record_file
from atfnd.program.journals.record_file import Format, Record, RecordFile, Unrecorded

FORMAT = Format("a", 1)
RECORDS: list[Record] = [["=", "eth0", "rss", "0 1"], ["+", "\r\n\x85ü"], ["-", 7, None, [1]]]


def nothing() -> Iterator[Record]:
    return iter(())


def opened(path: Path, format_: Format = FORMAT) -> tuple[RecordFile, list[Record]]:
    records: list[Record] = []
    return RecordFile(path, format_, records.append, nothing), records


def read(path: Path) -> tuple[list[Record], int]:
    file, records = opened(path)
    file.close()
    return records, file.damaged


def written(path: Path, records: list[Record] = RECORDS) -> bytes:
    file, _ = opened(path)
    for record in records:
        file.append(record, sync=True)
    file.close()
    return path.read_bytes()


def test_cut_at_every_byte_it_has_every_whole_record_and_takes_more(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    text = written(path)
    ends = [i for i, byte in enumerate(text) if byte == ord("\n")]  # alone it may be missing
    for cut in range(len(text) + 1):
        path.write_bytes(text[:cut])
        whole = RECORDS[: max(sum(end <= cut for end in ends) - 1, 0)]  # the first is the format
        assert read(path) == (whole, 0)
        written(path, [["later"]])
        assert read(path) == ([*whole, ["later"]], 0)


@pytest.mark.parametrize("bit", [0x01, 0x07, 0x20, 0x80])
def test_a_damaged_byte_costs_no_other_record(tmp_path: Path, bit: int) -> None:
    path = tmp_path / "a.journal"
    text = written(path)
    for at in range(len(text)):
        path.write_bytes(text[:at] + bytes([text[at] ^ bit]) + text[at + 1 :])
        path.with_suffix(".damaged").unlink(missing_ok=True)
        hit, newline = text[:at].count(b"\n"), text[at : at + 1] == b"\n"
        found, damaged = read(path)
        lines = [["format", "a", 1], *RECORDS]
        left = lines[:hit] + lines[hit + 1 + newline :]  # a newline joins two
        assert found == [record for record in left if record[0] != "format"]
        last = at == len(text) - 1  # looks as if it was cut short
        assert damaged == 1 - last or (damaged == 2 and text[at] ^ bit == ord("\n"))
        assert path.with_suffix(".damaged").exists() == bool(damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_file_that_takes_records(junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.journal"
        path.write_bytes(junk)
        written(path)
        assert read(path)[0][-len(RECORDS) :] == RECORDS


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 9)), max_size=120))
def test_what_holds_survives_every_point_of_writing_it_anew(steps: list[tuple[int, int]]) -> None:
    """With a file that is written anew all the time; after each step a kill is tried."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(record_file, "_GROWTH_BYTES", 300),
        mock.patch.object(record_file, "_COPIED", 2),
    ):
        path, state = Path(folder) / "a.journal", dict[int, int]()

        def held() -> Iterator[Record]:
            for key in list(state):
                if key in state:
                    yield [key, state[key]]

        def replayed() -> dict[int, int]:
            known: dict[int, int] = {}
            copy = Path(folder) / "copy.journal"
            copy.write_bytes(path.read_bytes())
            for key, value in read(copy)[0]:
                known[key] = value
                if value == 0:
                    del known[key]
            return known

        file = RecordFile(path, FORMAT, list[Record]().append, held)
        for key, value in steps:
            file.append([key, value], sync=False)
            if value:
                state[key] = value
            else:
                state.pop(key, None)
            assert replayed() == state
        file.close()


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_refuses_and_spoils_nothing(tiny: Path) -> None:
    path = tiny / "a.journal"
    kept: list[Record] = [["first"]]
    file = RecordFile(path, FORMAT, list[Record]().append, lambda: iter(kept))
    file.append(["first"], sync=True)
    filler = tiny / "filler"
    with filler.open("wb", buffering=0) as full, suppress(OSError):
        while full.write(bytes(512)):
            pass

    def until_refused() -> None:  # the rest of its last page is still there
        while True:
            kept.append(["x" * 300, len(kept)])
            file.append(kept[-1], sync=True)

    with pytest.raises(Unrecorded, match="No space left"):
        until_refused()
    kept.pop()
    file.compact(sync=True)  # no room for that either
    assert not path.with_suffix(".new").exists()
    filler.unlink()
    file.append(["last"], sync=True)
    file.close()
    assert read(path) == ([*kept, ["last"]], 0)


def test_a_record_that_could_not_be_synced_is_not_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    file, _ = opened(path)
    failing = mock.patch.object(os, "fsync", side_effect=OSError(errno.EIO, ""))
    with failing, pytest.raises(Unrecorded):
        file.append(["+", "never done"], sync=True)
    file.append(["+", "done"], sync=True)
    file.close()
    assert read(path) == ([["+", "done"]], 0)


def test_a_file_of_another_format_is_set_aside_and_said(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    newer = Format("a", 2)
    file, _ = opened(path, newer)
    file.append(["of the future", 1, 2, 3], sync=True)
    file.close()
    text = path.read_bytes()
    file, records = opened(path)
    assert (records, file.unknown) == ([], "a 2")
    assert path.with_suffix(".unknown").read_bytes() == text
    trouble = file.trouble()
    assert trouble is not None
    assert "a.unknown" in trouble
    file.append(["now"], sync=True)
    file.close()
    file, records = opened(path)
    assert (records, file.unknown, file.trouble()) == ([["now"]], None, None)
    file.close()


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    os.mkfifo(path)
    with pytest.raises(OSError, match="a FIFO, not a regular file"):
        opened(path)
    path.unlink()
    (tmp_path / "other").write_text("theirs")
    path.symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="a symbolic link"):
        opened(path)
    path.unlink()
    for suffix in (".new", ".damaged"):  # what is written beside it
        path.with_suffix(suffix).symlink_to(tmp_path / "other")
    path.write_bytes(b"damaged\n")
    file, _ = opened(path)
    file.compact(sync=True)
    file.close()
    assert (tmp_path / "other").read_text() == "theirs"


def test_what_the_disk_refused_to_write_anew_is_written_later(tmp_path: Path) -> None:
    """A renamed NIC: nothing is appended, all records change."""
    path, kept = tmp_path / "a.journal", [["eth0"]]
    file = RecordFile(path, FORMAT, list[Record]().append, lambda: iter(kept))
    file.append(kept[0], sync=True)
    kept[0] = ["lan0"]
    with mock.patch.object(os, "fsync", side_effect=OSError(errno.EIO, "")):
        file.compact(sync=True)
        file.catch_up()
    assert read(path) == ([["eth0"]], 0)
    file.catch_up()
    assert read(path) == ([["lan0"]], 0)
    there = path.stat().st_ino
    file.catch_up()
    assert path.stat().st_ino == there, "nothing is left to write"
    file.close()
