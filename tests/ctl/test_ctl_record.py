# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl record` leaves no empty file behind, whatever goes wrong."""

from __future__ import annotations

import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.serve.asking import ATFNCTL, atfnctl, environment
from tests.serve.published import serving

__all__: list[str] = []


def test_no_daemon(tmp_path: Path) -> None:
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


def test_interrupted_before_the_first_line(tmp_path: Path) -> None:
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
