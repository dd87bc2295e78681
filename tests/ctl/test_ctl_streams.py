# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnctl in a pipe, on a terminal, interrupted; and how little it loads."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.serve.asking import ATFNCTL, environment
from tests.serve.published import Serving, flow, serving, three_flows
from tests.wait import until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


@pytest.mark.parametrize(
    "words", [["flows", "--json"], ["flows", "--limit", "9999"], ["events"], ["top"]]
)
def test_a_reader_that_has_had_enough(daemon: Serving, words: list[str]) -> None:
    daemon.do(lambda: daemon.source.fill(range(3000)))
    with subprocess.Popen(
        [ATFNCTL, *words], env=environment(daemon), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        complaints = process.stderr.read().decode()
        assert process.wait(30) == 0
    assert complaints.replace("the first 200; more with --limit, all with --json\n", "") == ""


class Stream:
    """atfnctl running: what it has written so far, until it gets Ctrl-C."""

    def __init__(self, daemon: Serving, *words: str, terminal: bool = False) -> None:
        self.text = b""
        read, write = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [ATFNCTL, *words],
            env=environment(daemon) | {"TERM": "xterm", "COLUMNS": "250"},
            stdout=write,
            stderr=subprocess.PIPE,
        )
        os.close(write)
        self._read = read
        os.set_blocking(read, False)

    def has(self, words: str) -> bool:
        try:
            while chunk := os.read(self._read, 65536):
                self.text += chunk
        except OSError:
            pass  # nothing more yet, or (EIO) the terminal's other end is closed
        return words.encode() in self.text

    def interrupt(self) -> tuple[int, bytes]:
        self.process.send_signal(signal.SIGINT)
        _, complaints = self.process.communicate(timeout=30)
        os.close(self._read)
        return self.process.returncode, complaints


@pytest.mark.parametrize("terminal", [True, False])
def test_watch_shows_what_changes_until_ctrl_c(daemon: Serving, terminal: bool) -> None:
    stream = Stream(daemon, "flows", "--watch", "--interval", "0.1", terminal=terminal)
    until(lambda: stream.has("10.9.0.1:40002"), "the table")
    daemon.do(lambda: daemon.source.table.put(flow(7)))
    until(lambda: stream.has("10.9.0.1:7 "), "the new flow")
    assert stream.interrupt() == (0, b"")


def test_follow_shows_new_events_until_ctrl_c(daemon: Serving) -> None:
    stream = Stream(daemon, "events", "--follow", "--after", "1498")
    until(lambda: stream.has("#1500"), "what is there")
    event = daemon.source.log[-1]
    daemon.do(lambda: daemon.source.log.append(replace(event, seq=1501, what="late")))
    until(lambda: stream.has("late"), "what comes")
    assert stream.interrupt() == (0, b"")
    assert len(stream.text.decode().splitlines()) == 3


def test_a_start_is_light() -> None:
    """Neither the server's libraries nor the kernel room come with atfnctl."""
    code = "import sys, atfnd.ctl.verbs; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    heavy = {"aiohttp", "asyncio", "pyroute2", "pydantic", "yaml", "psutil"}
    assert not loaded & heavy
    ours = {name for name in loaded if name.startswith("atfnd.")}
    assert ours <= {"atfnd.ctl", "atfnd.errors", "atfnd.socket_path"} | {
        f"atfnd.ctl.{name}"
        for name in (
            "client", "columns", "completion", "duration", "empty", "events", "gain", "help",
            "output", "pairs", "tables", "verbs", "version",
        )
    }  # fmt: skip
