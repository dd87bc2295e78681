# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd run` as an operator runs it: a process, asked over its socket, ended by a signal.

Each has a folder of its own: `run` is its --run-dir, `atfnd.yaml` its policy, `said` its stderr.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from atfnd.model import FlowKey, Protocol, endpoint
from tests.labs import Lab
from tests.serve.asking import atfnctl, forked
from tests.wait import EMULATED, SLOWER, until
from tests.zygote import Forked

__all__ = ["ATFND", "EVERYTHING", "OBSERVERS", "Daemon", "Row", "policy", "standing"]

ATFND = str(Path(sys.executable).parent / "atfnd")
OBSERVERS = ["bpf", "sock_diag"]
STOP_S, ANSWER_S = 30.0 * SLOWER, 30.0 * SLOWER
# So many times as often as usual a daemon of a test looks (atfnd/daemon/chores.py). A look costs
# more in the emulated guest, and would leave no time for everything else.
PACE = "10" if EMULATED == 1 else "4"
# What it may use of a CPU: an emulated one does a thirtieth in the same time.
BUDGET = "1%" if EMULATED == 1 else "30%"

Row = dict[str, Any]


INTERFACES = """\
interfaces: [{{ match: {{ name: "*" }}, unowned: {unowned} }}]
"""


def policy(
    flows: str = "",
    dwell: str = "20ms",
    t_delete: str = "30s",
    hold_down: str = "10ms",
    table: int = 16384,
    order: str = "immediate",
    unowned: str = "keep",
) -> str:
    """A policy file: `flows` are rules that come before one that steers every TCP and UDP flow.
    `immediate`, but where order is the subject: a flow then moves whenever it is decided to.
    `unowned`: what serves threads that are not known to stay. No CPU counts as full: here all of
    them often are."""
    interfaces = "" if unowned == "keep" else INTERFACES.format(unowned=unowned)
    return f"""\
version: 1
daemon: {{ cpu: {BUDGET}, settle: {{ hold_down: {hold_down} }}, table: {{ max: {table} }} }}
{interfaces}flows:
{flows}
  - name: everything
    match: {{ protocol: [tcp, udp] }}
    placement: {{ near: core }}
    full_core: stay
    dwell: {dwell}
    t_delete: {t_delete}
    order: {order}
"""


EVERYTHING = policy()
# As the built-in rules, but no CPU counts as full.
USUAL = """\
version: 1
flows:
  - name: rest
    match: { protocol: [tcp, udp, sctp], min_bytes: 64KiB, min_age: 200ms }
    placement: { near: core }
    full_core: stay
"""


class _Api(http.client.HTTPConnection):
    """HTTP to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("atfnd", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Daemon:
    """One folder, and the daemon that runs in it now."""

    def __init__(self, folder: Path, config: str = EVERYTHING) -> None:
        self.run_dir = folder / "run"
        self.socket = self.run_dir / "atfnd.sock"
        self.config = folder / "atfnd.yaml"
        self.config.write_text(config)
        self._said = folder / "said"
        self.process: subprocess.Popen[bytes] | None = None

    def spawn(self, *options: str, wrapped: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start it, and do not wait; `wrapped` is a command line that runs it."""
        words = ["run", "--run-dir", str(self.run_dir), "--config", str(self.config), *options]
        forked = not wrapped or [*wrapped[:2]] == [sys.executable, "-m"]
        starts = Forked if forked else subprocess.Popen
        with self._said.open("ab") as said:
            self.process = starts(
                [*wrapped, ATFND, *words],
                env={"ATFND_GUARD_PACE": "0"} | os.environ | {"ATFND_PACE": PACE},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        return self.process

    def start(self, *options: str, wrapped: Sequence[str] = ()) -> None:
        """Start it and wait until it answers."""
        process = self.spawn(*options, wrapped=wrapped)
        until(lambda: process.poll() is not None or self.answers(), "the daemon answers", 60)
        assert process.poll() is None, self.said()

    def answers(self) -> bool:
        """A socket that nobody serves may be left by a daemon that was killed."""
        try:
            self.get("/v1/status")
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code; once it has ended, only that."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_S)

    def reap(self) -> None:
        """Whatever state it is in, it is gone after this."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_S)

    def said(self) -> str:
        return self._said.read_text()

    def ctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        return atfnctl(self.socket, *words)

    def restore(self) -> subprocess.CompletedProcess[str]:
        """`atfnd restore` of its run directory."""
        return forked([ATFND, "restore", "--run-dir", str(self.run_dir)])

    def get(self, path: str) -> Any:
        """GET a resource of the API: what a test polls, because atfnctl starts slowly."""
        return self._ask("GET", path)

    def post(self, path: str) -> Any:
        return self._ask("POST", path)

    @contextmanager
    def asking(self, path: str) -> Iterator[None]:
        """An answer has begun, and is not waited for."""
        with closing(_Api(self.socket)) as api:
            api.request("GET", path)
            assert api.getresponse().status == 200
            yield

    def order(self, verb: str, nic: str) -> None:
        """As `atfnctl arm NIC` and the like, without its start."""
        self.post(f"/v1/nics/{nic}/{verb}")

    def _ask(self, method: str, path: str) -> Any:
        api = _Api(self.socket)
        try:
            api.request(method, path)
            answer = api.getresponse()
            body = answer.read()
        finally:
            api.close()
        assert answer.status == 200, (answer.status, body)
        return json.loads(body)

    def status(self) -> Row:
        status: Row = self.get("/v1/status")
        return status

    def flows(self) -> list[Row]:
        """The Flow-to-Core table, every page of it."""
        rows: list[Row] = []
        cursor: int | None = 0
        while cursor is not None:
            page = self.get(f"/v1/flows?limit=1000&cursor={cursor}")
            rows += page["flows"]
            cursor = page["next"]
        return rows

    def flow(self, key: FlowKey) -> Row | None:
        """A flow's row of the table."""
        wanted = (
            Protocol(key.protocol).name.lower(),
            endpoint(key.local, key.local_port),
            endpoint(key.remote, key.remote_port),
        )
        found = (
            row for row in self.flows() if wanted == (row["proto"], row["local"], row["remote"])
        )
        return next(found, None)

    def events(self, *kinds: str) -> list[Row]:
        """What it did and noticed, oldest first."""
        rows: list[Row] = []
        after = 0
        while page := self.get(f"/v1/events?limit=1000&after={after}")["events"]:
            rows += page
            after = page[-1]["seq"]
        return [row for row in rows if not kinds or row["kind"] in kinds]


def standing(lab: Lab) -> tuple[object, ...]:
    """Everything of a NIC that a daemon may change: rules, CPUs of queues, RSS."""
    rules = [rule._replace(hits=None) for rule in lab.nic.filters()]
    return rules, [queue.cpu for queue in lab.nic.queues()], lab.nic.rss()
