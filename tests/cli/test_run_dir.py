# SPDX-License-Identifier: GPL-2.0-or-later
"""The run directory: no file in it leads elsewhere, and nobody else may put one there."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from atfnd.cli.restore import restore
from atfnd.errors import OperatorError


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    made = tmp_path / "run"
    made.mkdir()
    return made


def refused(run_dir: Path) -> OperatorError:
    with pytest.raises(OperatorError) as refusal:
        restore(run_dir)
    return refusal.value


@pytest.mark.parametrize("name", ["lock", "filters.journal", "originals.journal", "orders.journal"])
@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "fifo"),
        (os.mkdir, "directory"),
        (lambda path: path.symlink_to("/dev/null"), "it is a symbolic link"),
    ],
    ids=["fifo", "directory", "link"],
)
def test_what_is_no_file_is_refused_at_once(
    run_dir: Path, name: str, make: Callable[[Path], None], kind: str
) -> None:
    make(run_dir / name)
    message = refused(run_dir).message
    assert message.startswith(f"{run_dir / name}: ")
    assert kind in message.lower()


def test_one_that_others_may_write_is_refused(run_dir: Path) -> None:
    for path in (run_dir, run_dir.parent):
        path.chmod(0o777)
        refusal = refused(run_dir)
        assert refusal.message.startswith(f"others may write {path}")
        assert refusal.hint == f"chmod go-w {path}"
        assert list(run_dir.iterdir()) == []
        path.chmod(0o755)
    restore(run_dir)


def test_a_link_to_one_is_refused(tmp_path: Path, run_dir: Path) -> None:
    (tmp_path / "link").symlink_to(run_dir)
    assert "symbolic link" in refused(tmp_path / "link").message


def test_a_journal_of_another_format_is_said_and_set_aside(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps(["format", "filters", 99], separators=(",", ":")).encode()
    (run_dir / "filters.journal").write_bytes(b"%08x %b\n" % (zlib.crc32(text), text))
    restore(run_dir)
    said = capsys.readouterr().err
    assert said.startswith(f"atfnd: {run_dir}/filters.journal: set aside as filters.unknown: ")
    assert (run_dir / "filters.unknown").exists()
