# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl top` in a real terminal, on a real daemon with real applications."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bed import Bed, a_bed
from tests.ctl.terminals import PROMPT, Terminal, a_terminal
from tests.labs import Lab
from tests.serve.asking import ATFNCTL
from tests.wait import until


@pytest.fixture
def bed(shared_lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(shared_lab, tmp_path, "bpf") as made:
        made.start()
        yield made


def start(terminal: Terminal, *words: str) -> None:
    terminal.run(f"{ATFNCTL} top {' '.join(words)}; echo ended with $?")
    terminal.has("q quit")


def test_a_daemon_that_goes_and_comes_back(bed: Bed, tmp_path: Path) -> None:
    app = bed.apps.tcp()
    bed.steered(app)
    with a_terminal(tmp_path, 80, 24, ATFND_SOCKET=str(bed.daemon.socket)) as terminal:
        start(terminal, "--interval", "0.2")
        terminal.has(f"1/1  tcp 10.9.0.1:{app.key.local_port}", f" {app.pid} ")
        for end in (signal.SIGTERM, signal.SIGKILL):
            bed.daemon.end(end)
            terminal.has("asking on for", "atfnd is not running: nothing listens")
            assert f":{app.key.remote_port}" in terminal.screen()
            bed.start()
            until(lambda: "asking on" not in terminal.screen(), "it answers again")
            terminal.has(f"1/1  tcp 10.9.0.1:{app.key.local_port}")
            until(lambda: re.search(r"\n *[1-9][\d.]*[kM] .* yes ", terminal.screen()), "its rate")
        terminal.press("q")
        terminal.has("ended with 0")


def test_another_size(bed: Bed, tmp_path: Path) -> None:
    app = bed.apps.tcp()
    bed.steered(app)
    with a_terminal(tmp_path, 160, 50, ATFND_SOCKET=str(bed.daemon.socket)) as terminal:
        start(terminal)
        terminal.has("PROTO", "REMOTE")
        for width, height in ((40, 10), (120, 30)):
            terminal.resize(width, height)

            def fits(height: int = height) -> bool:
                lines = terminal.lines()
                return len(lines) == height and "q quit" in lines[-1]

            until(fits, f"a frame of {width}x{height}")
        terminal.has(f"{app.pid}", "REMOTE")


@pytest.mark.parametrize(
    ("end", "code"), [("q", 0), ("C-c", 0), ("TERM", 143), ("HUP", 129), ("C-z", 0)]
)
def test_the_terminal_is_left_as_it_was(bed: Bed, tmp_path: Path, end: str, code: int) -> None:
    with a_terminal(tmp_path, 80, 24, ATFND_SOCKET=str(bed.daemon.socket)) as terminal:
        before = terminal.settings(tmp_path / "before")
        terminal.run(f"sh -c 'echo $$ >{tmp_path}/pid; exec {ATFNCTL} top'; echo ended with $?")
        terminal.has("q quit")
        assert terminal.state() == ("1", "0")
        if end in ("TERM", "HUP"):
            os.kill(int((tmp_path / "pid").read_text()), signal.Signals[f"SIG{end}"])
        else:
            terminal.press(end)
        if end == "C-z":
            terminal.has("Stopped")
            assert terminal.state() == ("0", "1")
            terminal.run("fg")
            terminal.has("q quit")
            assert terminal.state() == ("1", "0")
            terminal.press("q")
            until(lambda: terminal.state() == ("0", "1"), "left")
        else:
            terminal.has(f"ended with {code}")
        assert terminal.state() == ("0", "1")
        assert terminal.settings(tmp_path / "after") == before
        assert PROMPT in terminal.screen()
        assert "LAST MOVES" not in terminal.screen()


def test_a_daemon_that_is_stuck_and_a_terminal_that_is_closed(bed: Bed, tmp_path: Path) -> None:
    """Keys are heard while it does not answer; nothing of ours is left behind."""
    assert bed.daemon.process is not None
    running = f"sh -c 'echo $$ >{tmp_path}/pid; exec {ATFNCTL} top'; echo ended with $?"
    with a_terminal(tmp_path, 80, 24, ATFND_SOCKET=str(bed.daemon.socket)) as terminal:
        terminal.run(running)
        terminal.has("q quit")
        bed.daemon.process.send_signal(signal.SIGSTOP)
        try:
            terminal.press("h")
            terminal.has("the other way round")
            terminal.press("x", "q")
            terminal.has("ended with 0")
        finally:
            bed.daemon.process.send_signal(signal.SIGCONT)
        terminal.run(running)
        terminal.has("q quit")
        pid = int((tmp_path / "pid").read_text())
        assert Path(f"/proc/{pid}").exists()
    until(lambda: not Path(f"/proc/{pid}").exists(), "it ended with its terminal")
