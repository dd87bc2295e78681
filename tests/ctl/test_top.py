# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl top` in a real terminal, on a real daemon with real applications."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.ctl.terminals import PROMPT, Terminal, a_terminal
from tests.labs import Lab
from tests.serve.asking import ATFNCTL
from tests.wait import until

__all__: list[str] = []

SIZES = [(80, 24), (160, 50)]


@pytest.fixture
def bed(shared_lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(shared_lab, tmp_path, "bpf") as made:
        made.start()
        yield made


def rows(terminal: Terminal) -> list[str]:
    """Of the flow table: from its header to the line on the flow at hand."""
    lines = terminal.lines()
    first = next(
        (n for n, line in enumerate(lines) if line.lstrip().startswith("BIT/S")), len(lines)
    )
    return [line for line in lines[first + 1 :] if re.match(r" *([\d.]+[kMG]?|-) +python ", line)]


def pids(terminal: Terminal) -> list[int]:
    return [int(row.split()[2]) for row in rows(terminal)]


def shows(terminal: Terminal, *apps: Application) -> None:
    """Exactly these flows, in whatever order."""
    wanted = sorted(app.pid for app in apps)
    until(lambda: sorted(pids(terminal)) == wanted, f"flows of {wanted}: {terminal.screen()}")


def start(terminal: Terminal, *words: str) -> None:
    terminal.run(f"{ATFNCTL} top {' '.join(words)}; echo ended with $?")
    terminal.has("q quit")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_flows_cpus_queues_and_moves(bed: Bed, tmp_path: Path, width: int, height: int) -> None:
    apps = [bed.apps.tcp() for _ in range(3)]
    placed = [bed.steered(app) for app in apps]
    with a_terminal(tmp_path, width, height, ATFND_SOCKET=str(bed.daemon.socket)) as terminal:
        start(terminal)
        shows(terminal, *apps)

        def known() -> bool:
            """Rates of flows, CPUs and queues."""
            screen = terminal.screen()
            return (
                all(re.match(r" *\d", row) for row in rows(terminal))
                and re.search(r"CPU 0 .*net +\d+% app +\d+%", screen) is not None
                and re.search(r"/\d CPU \d +[1-9][\d.]*k?pkt/s +[1-9][\d.]*[kMG]b/s", screen)
                is not None
            )

        until(known, "rates")
        for app, row in zip(apps, placed, strict=True):
            (line,) = (line for line in rows(terminal) if f" {app.pid} " in line)
            _, comm, _, cpu, queue, rx_cpu, *more = line.split()
            assert (comm, cpu, queue) == ("python", str(app.cpu), str(row["target_queue"]))
            assert rx_cpu == str(app.cpu)
            assert "yes" in more
            assert f"its thread runs on CPU {app.cpu}"[: 80 - 62] in line
        lines = terminal.lines()
        assert len(lines) == height
        assert f"{bed.lab.nic.name} armed" in lines[0]
        moved = lines[lines.index(next(line for line in lines if "LAST MOVES" in line)) + 1 : -1]
        assert len(moved) == 3
        assert all("queue" in line and "->" in line for line in moved)
        newest = bed.daemon.events("insert", "rewrite")[-1]
        assert newest["flow"] in moved[0]


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_sort_filter_pause(bed: Bed, tmp_path: Path, width: int, height: int) -> None:
    apps = [bed.apps.tcp() for _ in range(3)]
    for app in apps:
        bed.steered(app)
    beside = tmp_path / "beside"
    beside.mkdir()
    socket = str(bed.daemon.socket)
    with (
        a_terminal(tmp_path, width, height, ATFND_SOCKET=socket) as terminal,
        a_terminal(beside, width, height, ATFND_SOCKET=socket) as other,
    ):
        start(other, "--interval", "0.2")
        start(terminal, "--interval", "0.2")
        shows(terminal, *apps)
        terminal.press("Right", "Right")
        terminal.has("by PID")
        down = sorted((app.pid for app in apps), reverse=True)
        until(lambda: pids(terminal) == down, "by pid")
        terminal.press("r")
        until(lambda: pids(terminal) == down[::-1], "the other way round")
        terminal.press("Down")
        at = next(app for app in apps if app.pid == down[1])
        terminal.has(f"2/3  tcp 10.9.0.1:{at.key.local_port} <- ", "steered")
        terminal.press("/")
        terminal.type(f":{at.key.remote_port}")
        terminal.has(f"filter: :{at.key.remote_port}_  (1 of 3;")
        shows(terminal, at)
        terminal.press("Enter")
        terminal.has(f"only ':{at.key.remote_port}': 1 of 3")
        terminal.press("Escape")
        shows(terminal, *apps)
        terminal.press("p")
        terminal.has("PAUSED")
        late: list[Application] = []
        for _ in range(2):  # the one that is not paused shows each: it looked twice, at least
            late.append(bed.apps.tcp())
            bed.steered(late[-1])
            shows(other, *apps, *late)
            assert sorted(pids(terminal)) == sorted(app.pid for app in apps)
        terminal.press("p")
        shows(terminal, *apps, *late)
        terminal.press("?")
        terminal.has("the other way round")
        terminal.press("x")
        shows(terminal, *apps, *late)


def test_a_daemon_that_goes_and_comes_back(bed: Bed, tmp_path: Path) -> None:
    app = bed.apps.tcp()
    bed.steered(app)
    with a_terminal(tmp_path, 80, 24, ATFND_SOCKET=str(bed.daemon.socket)) as terminal:
        start(terminal, "--interval", "0.2")
        shows(terminal, app)
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
        for width, height in ((80, 24), (40, 10), (120, 30)):
            terminal.resize(width, height)

            def fits(height: int = height) -> bool:
                lines = terminal.lines()
                return (
                    len(lines) == height
                    and lines[0].startswith("atfnd")
                    and "q quit" in (lines[-1])
                )

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


def test_no_colour(bed: Bed, tmp_path: Path) -> None:
    """NO_COLOR leaves bold and reverse."""
    app = bed.apps.tcp()
    bed.steered(app)
    colour = re.compile(r"\x1b\[(\d+;)*(3[0-7]|4[0-7]|9\d)(;\d+)*m")
    for number, (env, wanted) in enumerate((({}, True), ({"NO_COLOR": "1"}, False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with a_terminal(folder, 80, 24, ATFND_SOCKET=str(bed.daemon.socket), **env) as terminal:
            start(terminal)
            terminal.has("net", "LAST MOVES")
            until(lambda: re.search(r"net +\d", terminal.screen()), "shares")
            screen = "\n".join(terminal.lines(colours=True))
            assert (colour.search(screen) is not None) == wanted
            assert "\x1b[7m" in screen
