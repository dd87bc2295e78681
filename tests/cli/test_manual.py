# SPDX-License-Identifier: GPL-2.0-or-later
"""The man pages: whole, in 80 columns, and without a complaint of man(1) and lexgrog(1). And
`--help` of both programs and of each verb, which they are made of: grouped, whole and narrow."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from atfnd import __version__
from atfnd.cli.commands import app as atfnd
from atfnd.ctl.help import groups
from atfnd.ctl.top.verb import app as atfnctl
from docs.examples import EXAMPLES
from docs.manual import pages
from docs.reference import sections
from tests.daemons import ATFND
from tests.serve.asking import ATFNCTL, forked
from tests.tree.documented import parsed

PROGRAMS: dict[str, Any] = {"atfnd": get_command(atfnd), "atfnctl": get_command(atfnctl)}
WIDTH = 80


def helps(command: Any, context: Any) -> Iterator[tuple[str, Any, str]]:
    """Of a program, its verbs, and theirs: path, the command, its help in 80 columns."""
    inner = type(command).context_class(
        command, info_name=command.name, parent=context, terminal_width=WIDTH,
        max_content_width=WIDTH,
    )  # fmt: skip
    yield inner.command_path, command, command.get_help(inner)
    for each in getattr(command, "commands", {}).values():
        yield from helps(each, inner)


ALL = [found for program in PROGRAMS.values() for found in helps(program, None)]
every = pytest.mark.parametrize(("path", "command", "text"), ALL, ids=[path for path, *_ in ALL])


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


@pytest.mark.parametrize(("name", "program"), [("atfnd.8", "atfnd"), ("atfnctl.1", "atfnctl")])
def test_it_has_what_help_has(folder: Path, name: str, program: str) -> None:
    """Every verb and every option."""
    text = shown(folder / name)
    for verb, command, output in helps(PROGRAMS[program], None):
        if verb and not command.hidden and not hasattr(command, "commands"):
            body = re.search(rf"^ +{verb}\n(.*?)(?=^ {{0,5}}\S)", text, re.MULTILINE | re.DOTALL)
            assert body is not None, verb
            options = set(re.findall(r"--[a-z][a-z-]*", output)) - {"--help"}
            assert options <= set(re.findall(r"--[a-z][a-z-]*", body[1])), verb


def test_it_has_every_key_of_a_policy(folder: Path) -> None:
    text = shown(folder / "atfnd.yaml.5")
    for path, about, keys in sections():
        assert about.replace("`", "") in " ".join(text.split()), path
        for key, *_ in keys:
            assert re.search(rf"^ +{key}\b", text, re.MULTILINE), key
    for line in EXAMPLE.splitlines():
        assert line in text


# `--help` and `--version`


@every
def test_it_is_narrow_and_each_value_and_option_is_explained(
    path: str, command: Any, text: str
) -> None:
    assert max(map(len, text.splitlines())) <= WIDTH
    assert re.findall(r"<[a-z]", text) == []  # a Python type
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            assert parameter.help, parameter.name
            shown = (
                parameter.metavar if parameter.param_type_name == "argument" else parameter.opts[0]
            )
            assert re.search(rf"^  (?:-\w, )?{shown}\b", text, re.MULTILINE), shown


@pytest.mark.parametrize("name", PROGRAMS)
def test_verbs_are_grouped_and_none_is_cut(name: str) -> None:
    program = PROGRAMS[name]
    (text,) = (found for path, command, found in ALL if command is program)
    assert "..." not in text.replace("[ARGS]...", "")
    grouped = groups(program)
    assert "Commands" not in grouped
    shown = {verb.name for verbs in grouped.values() for verb in verbs}
    assert shown == {verb.name for verb in program.commands.values() if not verb.hidden}
    for word in (*(f"{title}:" for title in grouped), *shown):
        assert re.search(rf"^ *{word}(?: |$)", text, re.MULTILINE), word


@pytest.mark.parametrize(("program", "name"), [(ATFND, "atfnd"), (ATFNCTL, "atfnctl")])
def test_version(program: str, name: str) -> None:
    done = forked([program, "--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {__version__}\n", "")
