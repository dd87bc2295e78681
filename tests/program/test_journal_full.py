# SPDX-License-Identifier: GPL-2.0-or-later
"""A journal that cannot be written: nothing is changed, it is said why, and it goes on after."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.applications import delivered
from tests.bed import a_bed
from tests.daemons import Row
from tests.labs import Lab


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder whose run directory is a file system of 256 KiB."""
    run = tmp_path / "run"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", run], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", run], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as full, suppress(OSError):
        while full.write(bytes(64)):
            pass


def test_nothing_is_changed_without_a_journal(lab: Lab, small: Path) -> None:
    with a_bed(lab, small, "bpf") as bed:
        bed.start()
        fill(small / "run/filler")

        def decided(row: Row) -> bool:
            return row["state"] == "steered" or "journal" in row["why"]

        row: Row = {"state": "steered"}
        while row["state"] == "steered":  # the rest of the journal's last page is still there
            app = bed.apps.udp_connected()
            row = bed.row(app, decided, "is steered, or refused")
        before = lab.nic.filters()
        assert row["filter"] is None
        assert "No space left on device" in row["why"]
        assert bed.rule(app) is None
        (small / "run/filler").unlink()
        bed.steered(app)
        delivered(bed.meter, app)
        assert len(lab.nic.filters()) == len(before) + 1
        assert bed.daemon.end() == 0
        assert "Traceback" not in bed.daemon.said()
