# SPDX-License-Identifier: GPL-2.0-or-later
"""The man pages: whole, in 80 columns, and without a complaint of man(1) and lexgrog(1)."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from docs.examples import EXAMPLES
from docs.manual import narrowed, pages
from docs.reference import sections
from tests.daemons import ATFND
from tests.serve.asking import ATFNCTL
from tests.tree.documented import parsed

__all__: list[str] = []

EXAMPLE = "version: 1\nabout: it's \\fB-- here\n.nothing\n"
NAMES = ["atfnd.8", "atfnctl.1", "atfnd.yaml.5"]
POLICIES = Path(__file__).parents[2] / "policies"
SHOWN = POLICIES / "data-transfer.yaml"  # by `make man`
TYPE = re.compile(r"<(?:int|str|bool|float|path|list|datetime|uuid|file)\b")  # as Typer names it


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man")
    for name, text in pages(EXAMPLE).items():
        (made / name).write_text(text)
    return made


def shown(page: Path, columns: int = 500) -> str:
    """As man(1) shows it; its complaints are in what fails."""
    done = subprocess.run(
        ["man", "--warnings", "-Tutf8", "-l", page],
        env={"PATH": "/usr/bin:/bin", "MANWIDTH": str(columns), "LANG": "C.UTF-8",
             "MANROFFOPT": "-rHY=0"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr == ""
    return re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_shown_and_found(folder: Path, name: str) -> None:
    text = shown(folder / name)
    assert text.splitlines()[0].startswith(name.rpartition(".")[0])
    done = subprocess.run(["lexgrog", folder / name], capture_output=True, text=True, check=True)
    assert f'"{name.rpartition(".")[0]} - ' in done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_page_fits_a_terminal_and_names_no_type(tmp_path: Path, name: str) -> None:
    """With the example that is installed."""
    page = tmp_path / name
    page.write_text(pages(SHOWN.read_text())[name])
    text = shown(page, 80)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert TYPE.findall(text) == []


@pytest.mark.parametrize("policy", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_narrow_example_says_the_same(policy: Path) -> None:
    text = policy.read_text()
    narrow = "\n".join(narrowed(text, 73))
    assert yaml.safe_load(narrow) == yaml.safe_load(text)
    assert sorted(re.findall(r"\w+", narrow)) == sorted(re.findall(r"\w+", text))


@pytest.mark.parametrize("page", sorted(EXAMPLES))
def test_each_example_is_a_command(folder: Path, page: str) -> None:
    """It is in the page as it is typed, and the parser of its program takes it."""
    text = shown(folder / page)
    assert "EXAMPLES" in text.splitlines()
    taken = 0
    for line in (line for lines in EXAMPLES[page].values() for line in lines):
        assert re.search(rf"^ +{re.escape(line)}$", text, re.MULTILINE), line
        program, *words = shlex.split(line.partition(" | ")[0].removesuffix(" &"))
        if program in ("atfnd", "atfnctl"):
            parsed(program, words)
            taken += 1
    assert taken >= 5


@pytest.mark.parametrize(("name", "program"), [("atfnd.8", ATFND), ("atfnctl.1", ATFNCTL)])
def test_it_has_what_help_has(folder: Path, name: str, program: str) -> None:
    """Every word of help that is a verb or an option, of each verb."""
    text = shown(folder / name)
    synopsis = text.partition("\nSYNOPSIS\n")[2].partition("\nDESCRIPTION\n")[0]
    verbs = re.findall(rf"^ +{Path(program).name} ((?:lab )?[a-z]+) ", synopsis, re.MULTILINE)
    assert {"atfnd.8": "run", "atfnctl.1": "arm"}[name] in verbs
    for verb in verbs:
        output = subprocess.run(
            [program, *verb.split(), "--help"],
            env={"PATH": "/usr/bin", "TERM": "dumb", "COLUMNS": "200"},
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
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
