# SPDX-License-Identifier: GPL-2.0-or-later
"""The man pages: whole, and without a complaint of man(1) and lexgrog(1)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from docs.manual import pages
from docs.reference import sections
from tests.asking import ATFNCTL
from tests.daemons import ATFND

__all__: list[str] = []

EXAMPLE = "version: 1\nabout: it's \\fB-- here\n.nothing\n"
NAMES = ["atfnd.8", "atfnctl.1", "atfnd.yaml.5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man")
    for name, text in pages(EXAMPLE).items():
        (made / name).write_text(text)
    return made


def shown(page: Path) -> str:
    """As man(1) shows it; its complaints are in what fails."""
    done = subprocess.run(
        ["man", "--warnings", "-Tutf8", "-l", page],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": "500", "LANG": "C.UTF-8", "MANROFFOPT": "-rHY=0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_shown_and_found(folder: Path, name: str) -> None:
    text = shown(folder / name)
    assert text.splitlines()[0].startswith(name.rpartition(".")[0])
    done = subprocess.run(["lexgrog", folder / name], capture_output=True, text=True, check=True)
    assert f'"{name.rpartition(".")[0]} - ' in done.stdout


@pytest.mark.parametrize(("name", "program"), [("atfnd.8", ATFND), ("atfnctl.1", ATFNCTL)])
def test_it_has_what_help_has(folder: Path, name: str, program: str) -> None:
    """Every word of help that is a verb or an option, of each verb."""
    text = shown(folder / name)
    verbs = re.findall(rf"^ +{Path(program).name} ((?:lab )?[a-z]+) ", text, re.MULTILINE)
    assert {"atfnd.8": "run", "atfnctl.1": "arm"}[name] in verbs
    for verb in verbs:
        output = subprocess.run(
            [program, *verb.split(), "--help"],
            env={"PATH": "/usr/bin", "TERM": "dumb", "COLUMNS": "200"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        body = re.search(rf"^ +{verb}\n(.*?)(?=^ {{0,5}}\S)", text, re.MULTILINE | re.DOTALL)
        assert body is not None, verb
        options = set(re.findall(r"--[a-z][a-z-]*", output)) - {"--help"}
        assert options == options & set(re.findall(r"--[a-z][a-z-]*", body[1])), verb


def test_it_has_every_key_of_a_policy(folder: Path) -> None:
    text = shown(folder / "atfnd.yaml.5")
    for path, about, keys in sections():
        assert about.replace("`", "") in " ".join(text.split()), path
        for key, *_ in keys:
            assert re.search(rf"^ +{key}\b", text, re.MULTILINE), key
    for line in EXAMPLE.splitlines():
        assert line in text
