# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnctl in a pipe, on a terminal, interrupted and into a file; and how little it loads."""

from __future__ import annotations

import os
import pty
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serve.asking import ATFNCTL, atfnctl, environment
from tests.serve.published import Serving, flow, serving
from tests.wait import until


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

    def __init__(
        self, daemon: Serving, *words: str, terminal: bool = False, **variables: str
    ) -> None:
        self.text = b""
        read, write = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [ATFNCTL, *words],
            env=environment(daemon) | {"TERM": "xterm", "COLUMNS": "250"} | variables,
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


def test_a_start_is_light() -> None:
    """Neither the server's libraries nor the kernel room come with atfnctl."""
    code = "import sys, atfnd.ctl.verbs; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    heavy = {"aiohttp", "asyncio", "pyroute2", "pydantic", "yaml", "psutil", "atfnd.serve"}
    assert not loaded & (heavy | {"atfnd.kernel", "atfnd.model", "atfnd.ctl.top"})


# `atfnctl record` leaves no empty file behind, whatever goes wrong


def test_without_a_daemon_there_is_no_file(tmp_path: Path) -> None:
    file = tmp_path / "seen.jsonl"
    done = atfnctl(tmp_path / "none.sock", "record", str(file))
    assert done.returncode == 3
    assert not file.exists()


def test_a_file_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "seen.jsonl"
    file.write_text("mine\n")
    done = atfnctl(tmp_path / "none.sock", "record", str(file))
    assert (done.returncode, done.stderr) == (
        2, f"atfnd: {file}: File exists\nhint: name a new file\n",
    )  # fmt: skip
    assert file.read_text() == "mine\n"


def test_a_recording_that_is_interrupted_before_the_first_line(tmp_path: Path) -> None:
    file, path = tmp_path / "seen.jsonl", tmp_path / "silent.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen()
        silent.settimeout(60)
        with subprocess.Popen(
            [ATFNCTL, "record", str(file)], env=environment(path), stderr=subprocess.PIPE, text=True
        ) as process:
            connection, _ = silent.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /v1/record")
                process.send_signal(signal.SIGINT)
                _, complaints = process.communicate(timeout=60)
    assert process.returncode == 1
    assert complaints == f"atfnd: nothing was recorded, and there is no {file}\n"
    assert not file.exists()


def test_a_disk_without_room(tmp_path: Path) -> None:
    """A limit on the size of files stands for it: EFBIG, as Python ignores SIGXFSZ."""
    file = tmp_path / "seen.jsonl"
    with serving(tmp_path / "atfnd.sock") as daemon:
        done = subprocess.run(
            [sys.executable, ATFNCTL, "record", str(file), "--max", "3"],
            env=environment(daemon), capture_output=True, text=True, timeout=60,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, f"atfnd: {file}: File too large\n")
    assert not file.exists()
