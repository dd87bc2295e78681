# SPDX-License-Identifier: GPL-2.0-or-later
"""Tab in real shells, each on its own terminal: half a word, Tab, and what it became is run. And
what the programs answer to a shell: every verb and every option."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.asking import ATFNCTL, environment, forked
from tests.serve.published import Serving, serving, three_flows

__all__: list[str] = []

SCRIPTS = Path(__file__).parents[2] / "completions"
PROMPT = "ready> "
READ_S = 60.0
ESCAPE = re.compile(r"\x1b(\[[0-9;?=>]*[a-zA-Z]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class Shell:
    """An interactive shell that has read our completions; `read` waits for what it prints."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, environment)
        self.read(PROMPT)

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read(self, expected: str) -> str:
        seen, end = "", time.monotonic() + READ_S
        while expected not in seen:
            left_s = end - time.monotonic()
            assert left_s > 0, f"no {expected!r} in {seen!r}"
            if select.select([self._terminal], [], [], left_s)[0]:
                seen += ESCAPE.sub("", os.read(self._terminal, 4096).decode(errors="replace"))
        return seen

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


def script(shell: str, program: str) -> str:
    """As `make install` writes it."""
    text = (SCRIPTS / f"{shell}.in").read_text()
    return text.replace("@prog@", program).replace("@PROG@", program.upper())


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


@pytest.fixture(params=["bash", "zsh", "fish"])
def shell(request: pytest.FixtureRequest, tmp_path: Path, daemon: Serving) -> Iterator[Shell]:
    kept = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
    variables = {**kept, "HOME": str(tmp_path), "TERM": "xterm", "PYTHONDONTWRITEBYTECODE": "1"}
    variables["ATFND_SOCKET"] = str(daemon.socket)
    argv = [request.param]
    if request.param == "bash":
        for program in ("atfnd", "atfnctl"):
            (tmp_path / program).write_text(script("bash", program))
        rc = f"PS1='{PROMPT}'\n. {tmp_path}/atfnd\n. {tmp_path}/atfnctl\n"
        (tmp_path / "rc").write_text(rc)
        argv += ["--noprofile", "--rcfile", str(tmp_path / "rc"), "-i"]
    elif request.param == "zsh":
        for program in ("atfnd", "atfnctl"):
            (tmp_path / f"_{program}").write_text(script("zsh", program))
        rc = f"PROMPT='{PROMPT}'\nfpath=({tmp_path} $fpath)\nautoload -U compinit\ncompinit -u -D\n"
        (tmp_path / ".zshrc").write_text(rc)
        argv += ["-d", "-i"]
    else:
        folder = tmp_path / ".config/fish"
        (folder / "completions").mkdir(parents=True)
        for program in ("atfnd", "atfnctl"):
            (folder / f"completions/{program}.fish").write_text(script("fish", program))
        prompt = f"set fish_greeting\nfunction fish_prompt; printf '{PROMPT}'; end\n"
        (folder / "config.fish").write_text(prompt)
    made = Shell(argv, variables)
    yield made
    made.close()


def test_tab(shell: Shell) -> None:
    """Neither a verb, an option nor a name is known by half of it."""
    for keys, printed in (
        ("atfnctl relo\t--help\r", "Read the policy again"),
        ("atfnctl flows --watc\t--help\r", "Repeat until Ctrl-C"),
        ("atfnd lab stat\t--help\r", "Exit code 1 when it is not up"),
        ("atfnctl queues --nic la\t\r", "ALLOWED"),
        ("atfnctl queues --nic lab:l\t--json\r", '"allowed_cpus"'),
        ("atfnctl flows --state stee\t--limit 1\r", "PROTO"),
    ):
        shell.type(keys)
        shell.read(printed)
        shell.read(PROMPT)


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
