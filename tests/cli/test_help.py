# SPDX-License-Identifier: GPL-2.0-or-later
"""`--help` of both programs and of each verb: grouped, whole, narrow, and without a Python type;
and `--version`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from atfnd import __version__
from atfnd.cli.commands import app as atfnd
from atfnd.ctl.help import groups
from atfnd.ctl.top.verb import app as atfnctl
from tests.daemons import ATFND
from tests.serve.asking import ATFNCTL, forked

__all__: list[str] = []

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


@every
def test_it_is_narrow_and_names_no_type(path: str, command: Any, text: str) -> None:
    assert [line for line in text.splitlines() if len(line) > WIDTH] == []
    assert re.findall(r"<[a-z]", text) == []


@every
def test_each_value_and_each_option_is_explained(path: str, command: Any, text: str) -> None:
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
    said = " ".join(text.split())
    for title, verbs in grouped.items():
        assert f"\n{title}:\n" in text
        for verb in verbs:
            first = re.split(r"(?<=[.?!])\s", " ".join(verb.help.split()))[0].rstrip(".")
            assert f"{verb.name} {first}" in said
    shown = {verb.name for verbs in grouped.values() for verb in verbs}
    assert shown == {verb.name for verb in program.commands.values() if not verb.hidden}


@pytest.mark.parametrize(("program", "name"), [(ATFND, "atfnd"), (ATFNCTL, "atfnctl")])
def test_version(program: str, name: str) -> None:
    done = forked([program, "--version"])
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {__version__}\n", "")
