# SPDX-License-Identifier: GPL-2.0-or-later
"""`disarm` is in force before anything else happens, whatever fails then; and root's comes in,
no matter who else keeps the socket busy."""

from __future__ import annotations

import asyncio
import errno
import grp
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atfnd.ctl.client import Client
from atfnd.daemon.changes import ChangeLog
from atfnd.daemon.executor import Executor
from atfnd.daemon.in_force import InForce
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.session import NicSession, Sessions
from atfnd.engine.engine import Engine
from atfnd.engine.event import NicAttached
from atfnd.engine.table.memory import Memory
from atfnd.errors import OperatorError
from atfnd.model import Policy
from atfnd.observe.nics.watch import NicWatch
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.record_file import Record, RecordFile, Unrecorded
from atfnd.serve.api.door import AT_ONCE, Accepting
from atfnd.serve.log.event_log import EventLog
from atfnd.socket_path import of_root
from tests.serve.asking import atfnctl, get, refusal
from tests.serve.published import Published, Serving, serving, three_flows
from tests.serve.test_api_peers import GROUP, NOBODY
from tests.values import NIC, RULE
from tests.wait import until

__all__: list[str] = []

# Keeps the backlog full, and 500 connections that say nothing.
FLOOD = """
import select, socket, sys
path, held = sys.argv[1], []
print("ok", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    try:
        client.connect(path)
        held.append(client)
    except BlockingIOError:
        client.close()
    for each in held[:-500]:
        each.close()
    del held[:-500]
"""


class Host:
    """Two armed NICs with moves under way; `close` is how these end."""

    def __init__(self, folder: Path, close: Callable[[Host], None]) -> None:
        anything: Any = SimpleNamespace
        self.sessions: Sessions = {}
        self.orders, log = OperatorJournal(folder / "orders.journal"), EventLog()
        policy = Policy((), (RULE,), "auto", 64, 0, ())
        engine = Engine(Memory.of(policy))
        for name in ("eth0", "eth1"):
            watch = NicWatch.__new__(NicWatch)
            watch.facts = replace(NIC, name=name)
            watch.reads_by(lambda: None)
            engine.handle(NicAttached(watch.facts, armed=True), 0)
            session = self.sessions[name] = NicSession(watch, engine.memory.nics[name])
            session.moves = anything(flows=list, close=lambda: close(self))
        in_force = InForce(policy)
        changes = ChangeLog(log, self.sessions, in_force)
        executor = Executor(
            engine, self.sessions, anything(), anything(), anything(), changes, in_force
        )
        nics = anything(sessions=self.sessions)
        self.operator = OperatorCommands(
            nics, executor, anything(), anything(), engine.memory.table, anything(), anything(),
            self.orders, log,
        )  # fmt: skip

    async def disarm(self, nic: str | None) -> None:
        await self.operator.disarm(nic)


def armed(host: Host) -> list[bool]:
    return [session.view.armed for session in host.sessions.values()]


def test_nothing_is_armed_when_moves_are_ended(tmp_path: Path) -> None:
    """And the end of one that fails keeps neither the others' nor the order from being taken."""
    seen = []

    def close(daemon: Host) -> None:
        seen.append(armed(daemon))
        raise OSError(errno.EIO, "Input/output error")

    daemon = Host(tmp_path, close)
    with pytest.raises(OperatorError, match=r"every interface is disarmed, but .*Input/output"):
        asyncio.run(daemon.disarm(None))
    assert seen == [[False, False]] * 2
    assert [each.moves for each in daemon.sessions.values()] == [None, None]
    assert armed(daemon) == [False, False]
    daemon.orders.close()
    assert OperatorJournal(tmp_path / "orders.journal").armed("eth9") is False


def test_moves_that_cannot_be_ended_in_order_stand_in_nobodys_way(tmp_path: Path) -> None:
    """A NIC that had gone was taken for one that is there, again and again."""

    def close(daemon: Host) -> None:
        raise OSError(errno.EIO, "Input/output error")

    daemon = Host(tmp_path, close)
    executor, session = daemon.operator._executor, daemon.sessions["eth0"]
    assert executor.still(session) == "Input/output error"
    assert session.moves is None
    assert executor.still(session) is None


def test_a_look_that_fails_leaves_nothing_armed(tmp_path: Path) -> None:
    """What was read until then is counted as armed, and that may not be had."""

    def refuse() -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    daemon = Host(tmp_path, lambda daemon: None)
    for session in daemon.sessions.values():
        session.watch.reads_by(refuse)
    with pytest.raises(OperatorError, match="is disarmed, but it could not be read"):
        asyncio.run(daemon.disarm(None))
    assert armed(daemon) == [False, False]


def test_a_bug_while_moves_are_ended_arms_nothing(tmp_path: Path) -> None:
    def close(daemon: Host) -> None:
        raise ZeroDivisionError

    daemon = Host(tmp_path, close)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(daemon.disarm("eth1"))
    assert armed(daemon) == [True, False]
    assert daemon.orders.armed("eth1") is False


@pytest.mark.parametrize("nic", ["eth0", None])
def test_a_disarm_that_cannot_be_recorded_is_in_force_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nic: str | None
) -> None:
    def full(self: RecordFile, record: Record, *, sync: bool) -> None:
        raise Unrecorded(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RecordFile, "append", full)
    daemon = Host(tmp_path, lambda daemon: None)
    with pytest.raises(OperatorError, match="No space left on device") as caught:
        asyncio.run(daemon.disarm(nic))
    assert f"{nic or 'every interface'} is disarmed" in caught.value.message
    assert armed(daemon) == ([False, True] if nic else [False, False])
    assert daemon.orders.armed("eth0") is False


class Unwritable(Published):
    """Disarms, and cannot write that down."""

    async def disarm(self, nic: str | None) -> None:
        await super().disarm(nic)
        raise OperatorError(f"{nic} is disarmed, but that is not recorded", "make room")


def test_the_answer_is_no_200(tmp_path: Path) -> None:
    with serving(tmp_path / "atfnd.sock", Unwritable()) as daemon:
        for path in ("/v1/disarm", "/v1/nics/lab:lab/disarm"):
            status, answer = refusal(daemon, path, "-XPOST")
            assert (status, answer["hint"]) == (409, "make room")
            assert "is disarmed, but that is not recorded" in str(answer["error"])
        assert get(daemon, "/v1/status")["armed"] == []
        for words in (["disarm"], ["disarm", "lab:lab"]):
            done = atfnctl(daemon, *words)
            assert (done.returncode, done.stdout) == (1, "")
            assert "is disarmed, but that is not recorded" in done.stderr


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Served to a group, in a folder that everybody may pass through."""
    monkeypatch.setattr("atfnd.serve.api.http.GROUP", GROUP)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with serving(Path(folder) / "atfnd.sock", three_flows()) as running:
            yield running


def test_a_flood_of_connections_does_not_keep_root_out(daemon: Serving) -> None:
    flood = subprocess.Popen(
        [sys.executable, "-c", FLOOD, str(daemon.socket)],
        user=NOBODY, group=grp.getgrnam(GROUP).gr_gid, extra_groups=[],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == b"ok\n"
        try:
            for _ in range(2):
                done = atfnctl(daemon, "disarm")
                assert (done.returncode, done.stdout) == (0, "every interface is disarmed\n")
            assert flood.poll() is None
        finally:
            flood.kill()
    assert daemon.source.status().armed == ()


def test_who_connects_again_and_again_waits(tmp_path: Path) -> None:
    """In the kernel, at no cost of ours; a peer at root's socket does not."""
    taken: Counter[str] = Counter()
    done = asyncio.Event()

    def protocol(of: str) -> asyncio.Protocol:
        taken[of] += 1
        if taken["root"] == AT_ONCE + 20:
            asyncio.get_running_loop().call_soon(done.set)
        return asyncio.Protocol()

    async def flooded() -> None:
        with ExitStack() as stack:
            for of, every_s in (("all", 3600), ("root", 0)):
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(str(tmp_path / of))
                listener.setblocking(False)
                accepting = Accepting(listener, partial(protocol, of), every_s)
                stack.callback(accepting.close)
                for _ in range(AT_ONCE + 20):
                    client = stack.enter_context(socket.socket(socket.AF_UNIX))
                    client.connect(str(tmp_path / of))
            await asyncio.wait_for(done.wait(), 30)

    asyncio.run(flooded())
    assert taken == {"all": AT_ONCE, "root": AT_ONCE + 20}


def test_roots_socket_is_roots(daemon: Serving) -> None:
    path = of_root(daemon.socket)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (0, 0, 0o600)
    words = ["curl", "-sS", "--unix-socket", str(path), "http://atfnd/v1/status"]
    member = grp.getgrnam(GROUP).gr_gid
    done = subprocess.run(
        words, user=NOBODY, group=member, extra_groups=[], capture_output=True, timeout=30
    )
    assert done.returncode == 7  # it could not connect
    daemon.socket.unlink()
    assert Client(str(daemon.socket)).get("/v1/status")["pid"] == 4242


def test_a_client_waits_for_room_in_the_backlog(tmp_path: Path) -> None:
    """A socket with a time limit does not block: the kernel answers EAGAIN while it is full."""
    path = tmp_path / "atfnd.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with ThreadPoolExecutor(1) as others:
            answer = others.submit(Client(str(path)).get, "/v1/status")
            until(answer.running, "it is under way")
            listener.accept()[0].close()
            with listener.accept()[0] as served:
                served.recv(4096)
                served.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            assert answer.result(30) == {}


def test_a_client_does_not_wait_for_room_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.ctl.client.TIMEOUT_S", 0.1)
    path = tmp_path / "atfnd.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(OperatorError, match="too many clients wait") as caught:
            Client(str(path)).get("/v1/status")
        assert caught.value.exit_code == 3
