# SPDX-License-Identifier: GPL-2.0-or-later
"""Asking a served API: with curl, and with atfnctl as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any, Protocol

from tests.wait import SLOWER
from tests.zygote import Forked

__all__ = [
    "ATFNCTL",
    "Served",
    "atfnctl",
    "curl",
    "environment",
    "forked",
    "get",
    "lines",
    "refusal",
]

ATFNCTL = str(Path(sys.executable).parent / "atfnctl")


class Served(Protocol):
    """A daemon, or what stands for one."""

    @property
    def socket(self) -> Path: ...


def environment(daemon: Served | Path) -> dict[str, str]:
    path = daemon if isinstance(daemon, Path) else daemon.socket
    hidden = ("COLUMNS", "LINES")
    return {k: v for k, v in os.environ.items() if k not in hidden} | {"ATFND_SOCKET": str(path)}


def atfnctl(daemon: Served | Path, *words: str) -> subprocess.CompletedProcess[str]:
    return forked([ATFNCTL, *words], environment(daemon))


def forked(
    command: list[str], variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a command of ours prints, and its exit code."""
    with Forked(command, env=variables, stdout=PIPE, stderr=PIPE, text=True) as process:
        try:
            stdout, stderr = process.communicate(timeout=60 * SLOWER)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def lines(daemon: Served, *words: str) -> list[str]:
    done = atfnctl(daemon, *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]


def curl(daemon: Served, path: str, *options: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    done = subprocess.run(
        ["curl", "-sS", "--unix-socket", str(daemon.socket), "-o", "-", "-w",
         "\n%{http_code} %{content_type}", *options, f"http://atfnd{path}"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    body, _, last = done.stdout.rpartition("\n")
    status, content_type = last.split(" ", 1)
    return int(status), content_type, body


def get(daemon: Served, path: str, *options: str) -> Any:
    status, content_type, body = curl(daemon, path, *options)
    assert (status, content_type.split(";")[0]) == (200, "application/json"), body
    return json.loads(body)


def refusal(daemon: Served, path: str, *options: str) -> tuple[int, dict[str, str | None]]:
    status, content_type, body = curl(daemon, path, *options)
    assert content_type.split(";")[0] == "application/json"
    answer = json.loads(body)
    assert answer.keys() == {"error", "hint"}
    assert answer["error"]
    return status, answer
