# SPDX-License-Identifier: GPL-2.0-or-later
"""What the documents lead to is there: pages, headings, files, `make` targets, verbs. The policies
in them are read, and each command is run by a test or has a reason (tests/tree/documented.py)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from atfnd.cli.commands import app as atfnd
from atfnd.ctl.top.verb import app as atfnctl
from atfnd.policy.file.load import load
from tests.tree.documented import (
    DOCUMENTS,
    NOT_RUN,
    PAGES,
    by_page,
    inline,
    parsed,
    reason,
    runs,
    unmarked,
)

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
MINE = re.compile(r"`((?:atfnd|bench|debian|docs|monitoring|packaging|policies|tests)/[\w./-]+)`")
CODE = re.compile(r"```\w*\n(.*?)```|`([^`\n]+)`", re.DOTALL)
POLICY = re.compile(r"^```yaml\n(version: 1\n.*?)^```$", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"\b(?:N|SEQ|SECONDS)\b")  # what stands for one
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def commands(text: str) -> str:
    """What is set as code, a piece a line."""
    return "\n".join(block or word for block, word in CODE.findall(text))


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        there = page.parent / path if path else page
        assert there.exists(), path
        assert not anchor or anchor in anchors(there), f"{path}#{anchor}"


@pages
def test_files_are_there(page: Path) -> None:
    named = [name for name in MINE.findall(page.read_text()) if "*" not in name]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_the_readme_leads_to_every_page() -> None:
    linked = {path for path, _ in LINK.findall((ROOT / "README.md").read_text())}
    assert {str(page.relative_to(ROOT)) for page in DOCUMENTS} <= linked


@pages
def test_commands_are_there(page: Path) -> None:
    code = commands(page.read_text())
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|[=;&] *)make ([a-z][a-z-]+)", code, re.MULTILINE)) <= targets
    for name, app in (("atfnd", atfnd), ("atfnctl", atfnctl)):
        group: Any = get_command(app)
        said = set(re.findall(rf"(?:^|[;&] *){name} ([a-z]+)", code, re.MULTILINE))
        assert said <= set(group.commands), name


def test_each_command_is_run_or_has_a_reason() -> None:
    """tests/daemon/test_typed_commands.py runs it, or a line of `NOT_RUN` says why not."""
    every = {line for lines in by_page().values() for line in lines}
    assert sorted(line for line in every if not runs(line) and reason(line) is None) == []
    assert [each for each in NOT_RUN if not any(line.startswith(each) for line in every)] == []


@pages
def test_a_block_of_commands_says_that_it_is_one(page: Path) -> None:
    assert unmarked(page.read_text()) == [], "begin the block with ```sh"


@pages
def test_commands_in_sentences_are_taken(page: Path) -> None:
    """By the parser of their program. A verb alone is named, not typed."""
    for command in inline(page.read_text()):
        program, *words = shlex.split(NUMBER.sub("1", re.split(r" [|>]", command)[0]))
        if program in ("atfnd", "atfnctl") and len(words) > 1:
            parsed(program, words)


@pages
def test_its_policies_are_read(page: Path, tmp_path: Path) -> None:
    """Those that are whole: they begin with the version. They name no user and no CPU, which this
    machine may not have."""
    for text in POLICY.findall(page.read_text()):
        file = tmp_path / "atfnd.yaml"
        file.write_text(text)
        assert load(file).files == (str(file),)
