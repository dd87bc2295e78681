# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon as an operator runs it: `atfnd run` as a process, asked over its socket, stopped with
SIGTERM."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atfnd.ctl.client import UNREACHABLE, Client
from atfnd.errors import OperatorError
from bench.children import Child, child, until

__all__ = ["Daemon", "daemon", "follow_tcp"]

DWELL_MS = 10  # the product's default
START_S = 120  # in a guest without KVM Python takes its time


def follow_tcp(
    full_core: str = "leave",
    unowned: str = "rfs",
    protocol: str = "tcp",
    order: str = "strict",
) -> str:
    """The policy: every TCP flow, or those of another protocol, to the core of its application;
    threads that wander have RFS, or what the queues have already (`unowned: keep`, the default of a
    policy)."""
    return f"""\
version: 1
about: Every {protocol} flow to the core of its application.
interfaces: [{{ match: {{ name: "*" }}, unowned: {unowned} }}]
flows:
  - name: {protocol}
    match: {{ protocol: {protocol} }}
    placement: {{ near: core }}
    full_core: {full_core}
    dwell: {DWELL_MS}ms
    order: {order}
"""


# An emulated CPU takes about thirty times as long for the same work.
_CPU = ", cpu: 30%" if "ATFND_GUEST" in os.environ else ""


class Daemon:
    """A running daemon and its socket."""

    def __init__(self, process: Child, socket: Path) -> None:
        self.process = process
        self.socket = socket
        self._client = Client(str(socket))

    def ready(self) -> bool:
        """It answers. OperatorError: it has ended."""
        self.process.check()
        try:
            self._client.get("/v1/status")
        except OperatorError as unreachable:
            if unreachable.exit_code != UNREACHABLE:
                raise
            return False
        return True

    def flows(self) -> list[dict[str, Any]]:
        """Every row of `/v1/flows`."""
        return list(self._client.pages("/v1/flows", "flows"))

    def events(self) -> list[dict[str, Any]]:
        """Every retained event of `/v1/events`."""
        return list(self._client.events())

    def table(self, columns: int, *arguments: str) -> str:
        """What `atfnctl` prints at a terminal of so many columns; OperatorError when it refuses."""
        ctl = str(Path(sys.executable).with_name("atfnctl"))
        done = subprocess.run(
            (ctl, *arguments, "--socket", str(self.socket)),
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": str(columns)},
        )
        if done.returncode:
            raise OperatorError(f"atfnctl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout


@contextlib.contextmanager
def daemon(nic: str, config: str) -> Iterator[Daemon]:
    """Run the daemon on `nic` until the `with` ends; it is ready when this yields. What `config`
    does not say of the daemon itself is added. At its end it takes its changes back: the next
    contender starts from the same NIC, with each queue on its own CPU."""
    with tempfile.TemporaryDirectory(prefix="atfnd-bench-") as folder:
        path = Path(folder) / "bench.yaml"
        added = "" if "\ndaemon:" in config else f"daemon: {{ on_stop: restore{_CPU} }}\n"
        path.write_text(config + added)
        command = ["env", "ATFND_GUARD_PACE=0", sys.executable, "-m", "atfnd", "run"]
        command += ["--nic", nic, "--arm", nic, "--run-dir", folder, "--config", str(path)]
        with child(*command) as process:
            running = Daemon(process, Path(folder) / "atfnd.sock")
            until(running.ready, "the daemon answers", START_S)
            yield running
