# SPDX-License-Identifier: GPL-2.0-or-later
"""Tab in real shells, each on its own terminal: half a word, Tab, and what it became is run. And
what the programs answer to a shell: every verb and every option."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ctl.terminals import Terminal, a_terminal
from tests.serve.asking import ATFNCTL, environment, forked
from tests.serve.published import Serving
from tests.wait import until

SCRIPTS = Path(__file__).parents[2] / "completions"
PROMPT = "inner>"


def script(shell: str, program: str) -> str:
    """As `make install` writes it."""
    text = (SCRIPTS / f"{shell}.in").read_text()
    return text.replace("@prog@", program).replace("@PROG@", program.upper())


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path: Path, daemon: Serving) -> Iterator[Terminal]:
    """That has read our completions."""
    variables = {"LANG": "C.UTF-8", "HOME": str(tmp_path), "ATFND_SOCKET": str(daemon.socket)}
    argv = [request.param]
    if request.param == "bash":
        for program in ("atfnd", "atfnctl"):
            (tmp_path / program).write_text(script("bash", program))
        rc = f"PS1='{PROMPT} '\n. {tmp_path}/atfnd\n. {tmp_path}/atfnctl\n"
        (tmp_path / "rc").write_text(rc)
        argv += ["--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]
    elif request.param == "zsh":
        for program in ("atfnd", "atfnctl"):
            (tmp_path / f"_{program}").write_text(script("zsh", program))
        rc = (
            f"PROMPT='{PROMPT} '\nfpath=({tmp_path} $fpath)\nautoload -U compinit\ncompinit -u -D\n"
        )
        (tmp_path / ".zshrc").write_text(rc)
        argv += ["-d", "-i"]
    else:
        folder = tmp_path / ".config/fish"
        (folder / "completions").mkdir(parents=True)
        for program in ("atfnd", "atfnctl"):
            (folder / f"completions/{program}.fish").write_text(script("fish", program))
        prompt = f"set fish_greeting\nfunction fish_prompt; printf '{PROMPT} '; end\n"
        (folder / "config.fish").write_text(prompt)
    with a_terminal(tmp_path, 150, 300, **variables) as terminal:
        terminal.run(f"PATH={Path(sys.executable).parent}:$PATH exec {' '.join(argv)}")
        yield terminal


def test_tab(shell: Terminal) -> None:
    """Neither a verb, an option nor a name is known by half of it."""

    def is_ready() -> bool:
        return shell.screen().strip().endswith(PROMPT)

    until(is_ready, "its prompt")
    for keys, printed in (
        ("atfnctl relo\t--help\r", "Read the policy again"),
        ("atfnctl flows --watc\t--help\r", "Repeat until Ctrl-C"),
        ("atfnd lab stat\t--help\r", "Exit code 1 when it is not up"),
        ("atfnctl queues --nic la\t\r", "ALLOWED"),
        ("atfnctl queues --nic lab:l\t--json\r", '"allowed_cpus"'),
        ("atfnctl flows --state stee\t--limit 1\r", "PROTO"),
    ):
        shell.type(keys)
        shell.has(printed)
        until(is_ready, "its prompt")


def offered(path: Path, typed: str) -> set[str]:
    """By what Tab after these words offers."""
    asked = {
        "_ATFNCTL_COMPLETE": "complete_fish",
        "_TYPER_COMPLETE_ARGS": typed,
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    return set(forked([ATFNCTL], environment(path) | asked).stdout.split())


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("atfnctl arm ", {"lab:lab", "eth1"}),
        ("atfnctl disarm e", {"eth1"}),
        ("atfnctl measure ", {"lab:lab", "eth1"}),
        ("atfnctl flows --state s", {"steered", "shared"}),
        ("atfnctl policy ", {"bulk", "control"}),
        ("atfnctl events --kind ", {"insert"}),
    ],
)
def test_names_are_offered(daemon: Serving, typed: str, names: set[str]) -> None:
    assert offered(daemon.socket, typed) == names


def test_without_a_daemon_no_name_is_offered(tmp_path: Path) -> None:
    assert offered(tmp_path / "no.sock", "atfnctl arm ") == set()
