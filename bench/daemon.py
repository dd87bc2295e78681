# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon as an operator runs it: `atfnd run` as a process, asked over its socket with
`atfnctl`, stopped with SIGTERM."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atfnd.errors import OperatorError
from bench.children import Child, child, until

__all__ = ["FOLLOW_TCP", "Daemon", "daemon", "follow_tcp"]

DWELL_MS = 10  # the product's default
START_S = 120  # in a guest without KVM Python takes its time


def follow_tcp(order: str = "strict") -> str:
    """The policy: every TCP flow to the core of its application."""
    return f"""\
version: 1
about: Every TCP flow to the core of its application.
flows:
  - name: tcp
    match: {{ protocol: tcp }}
    placement: {{ near: core }}
    dwell: {DWELL_MS}ms
    order: {order}
"""


FOLLOW_TCP = follow_tcp()


class Daemon:
    """A running daemon and its socket."""

    def __init__(self, process: Child, socket: Path) -> None:
        self.process = process
        self.socket = socket

    def _ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        ctl = str(Path(sys.executable).with_name("atfnctl"))
        return subprocess.run(
            (ctl, *arguments, "--socket", str(self.socket)), capture_output=True, text=True
        )

    def ready(self) -> bool:
        """It answers; as long as it has no socket it is not asked, which would slow its start."""
        self.process.check()
        return self.socket.exists() and self._ctl("status").returncode == 0

    def table(self, *arguments: str) -> str:
        """What `atfnctl` prints for an operator; OperatorError when it refuses."""
        done = self._ctl(*arguments)
        if done.returncode:
            raise OperatorError(f"atfnctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def ask(self, *arguments: str) -> Any:
        """The same as JSON."""
        return json.loads(self.table(*arguments, "--json"))


@contextlib.contextmanager
def daemon(nic: str, config: str = FOLLOW_TCP, arm: bool = True) -> Iterator[Daemon]:
    """Run the daemon on `nic` until the `with` ends; it is ready when this yields."""
    with tempfile.TemporaryDirectory(prefix="atfnd-bench-") as folder:
        path = Path(folder) / "bench.yaml"
        path.write_text(config)
        command = [sys.executable, "-m", "atfnd", "run", "--nic", nic]
        command += ["--arm", nic] if arm else []
        command += ["--run-dir", folder, "--config", str(path)]
        with child(*command) as process:
            running = Daemon(process, Path(folder) / "atfnd.sock")
            until(running.ready, "the daemon answers", START_S)
            yield running
