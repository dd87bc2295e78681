# SPDX-License-Identifier: GPL-2.0-or-later
"""Files that are no policy, and policies that another user may write."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from atfnd.policy.file.load import check, load
from atfnd.policy.file.problem import PolicyError

SOMEBODY = 12345


@pytest.fixture
def config(tmp_path: Path) -> Path:
    made = tmp_path / "etc" / "atfnd.yaml"
    parts = made.parent / "policies.d"
    parts.mkdir(parents=True)
    made.write_text("version: 1\n")
    (parts / "one.yaml").write_text("version: 1\n")
    return made


def problem(config: Path, *, trusting: bool = False) -> tuple[str, str, str | None]:
    """The file, what is wrong with it and the line that mends it."""
    with pytest.raises(PolicyError) as raised:
        load(config, trusting=trusting)
    [found] = raised.value.problems
    return found.file, found.message, found.hint


@pytest.mark.parametrize("trusting", [True, False])
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (os.mkfifo, "a FIFO"),
        (os.mkdir, "a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "a device"),
        (lambda path: path.symlink_to("/dev/tty0"), "a device"),
    ],
    ids=["fifo", "directory", "zero", "terminal"],
)
def test_what_is_no_file_is_refused_at_once(
    config: Path, make: Callable[[Path], None], what: str, trusting: bool
) -> None:
    part = config.parent / "policies.d" / "two.yaml"
    make(part)
    words = f"cannot be read: it is {what}, not a regular file"
    assert problem(config, trusting=trusting) == (str(part), words, None)


def test_a_file_without_an_end_is_not_read_to_it(config: Path) -> None:
    os.truncate(config, 1 << 40)  # a hole of a terabyte
    assert problem(config)[1] == "cannot be read: it is over 1048576 bytes"


@pytest.mark.parametrize("name", ["atfnd.yaml", "policies.d/one.yaml"])
@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_one_that_others_may_write_is_refused(config: Path, name: str, mode: int) -> None:
    path = config.parent / name
    path.chmod(mode)
    mend = f"chmod go-w {path}"
    assert problem(config) == (str(path), f"not to be trusted: others may write {path}", mend)
    path.chmod(0o644)
    load(config, trusting=False)


def test_one_of_somebody_else_is_refused(config: Path) -> None:
    os.chown(config, SOMEBODY, -1)
    why = f"not to be trusted: {config} belongs to uid {SOMEBODY}"
    assert problem(config) == (str(config), why, f"chown root {config}")


def test_one_in_a_folder_that_others_may_write_is_refused(config: Path, tmp_path: Path) -> None:
    """There, or where a link leads. A name with a blank is quoted in the line that mends it."""
    folder, theirs = config.parent / "policies.d", tmp_path / "their own"
    folder.chmod(0o777)
    assert problem(config)[2] == f"chmod go-w {folder}"
    folder.chmod(0o1777)
    load(config, trusting=False)
    theirs.mkdir()
    theirs.chmod(0o777)
    (theirs / "a.yaml").write_text("version: 1\n")
    (folder / "two.yaml").symlink_to(theirs / "a.yaml")
    assert problem(config)[2] == f"chmod go-w '{theirs}'"


def test_check_reads_it_and_says_that_it_will_be_refused(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.chmod(0o664)
    check(config)
    said = capsys.readouterr()
    assert said.out.startswith("policy OK: ")
    assert said.err.startswith(f"atfnd run will refuse it: {config}: not to be trusted: ")
    assert f"hint: chmod go-w {config}" in said.err


def test_a_user_may_check_his_own(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (config, *config.parent.rglob("*"), config.parent, config.parent.parent):
        os.chown(path, SOMEBODY, -1)
    above = config.parents[2]  # pytest's own are closed to others
    before = [(each, each.stat().st_mode & 0o7777) for each in (above, *above.parents)]
    for each, mode in before:
        each.chmod(mode | 0o011)
    os.seteuid(SOMEBODY)
    try:
        check(config)
    finally:
        os.seteuid(0)
        for each, mode in before:
            each.chmod(mode)
    assert capsys.readouterr().err == ""
