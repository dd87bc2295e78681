# SPDX-License-Identifier: GPL-2.0-or-later
"""The socket file, the users that may read and change, and clients that send or take nothing."""

from __future__ import annotations

import asyncio
import errno
import grp
import json
import os
import select
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from atfnd.errors import OperatorError
from atfnd.model.reason import Code
from atfnd.serve.api import door
from atfnd.serve.api.door import NO_ROOM_S, Accepting
from tests.serve.asking import get
from tests.serve.peers import NOBODY, connected
from tests.serve.published import Published, Serving, flow, serving, three_flows
from tests.wait import until

GROUP = "daemon"  # any that is in every /etc/group
CHANGES = ["/v1/reload", *(f"/v1/nics/eth1/{v}" for v in ("arm", "disarm", "pause", "resume"))]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """Served to a group, in a folder that everybody may pass through."""
    monkeypatch.setattr("atfnd.serve.api.http.GROUP", GROUP)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        with serving(Path(folder) / "atfnd.sock", three_flows()) as running:
            yield running


def ask(daemon: Serving, path: str, *options: str, group: int) -> tuple[int, Any]:
    """As a process of nobody's, in this group: status and answer."""
    words = ["curl", "-sS", "-w", "\n%{http_code}", "--unix-socket", str(daemon.socket), *options]
    done = subprocess.run(
        [*words, f"http://atfnd{path}"],
        user=NOBODY, group=group, extra_groups=[], capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    body, _, status = done.stdout.rpartition("\n")
    return (int(status), json.loads(body)) if not done.returncode else (done.returncode, None)


def test_a_member_of_the_group_reads_and_a_stranger_cannot_even_connect(daemon: Serving) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660
    status, answer = ask(daemon, "/v1/flows", group=grp.getgrnam(GROUP).gr_gid)
    assert (status, len(answer["flows"])) == (200, 3)
    assert ask(daemon, "/v1/status", group=NOBODY) == (7, None)  # curl: could not connect


def test_without_the_group_the_socket_is_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.serve.api.http.GROUP", "no-such-group")
    with serving(tmp_path / "atfnd.sock") as running:
        assert running.socket.stat().st_gid == os.getegid()
        assert get(running, "/v1/status")["pid"] == 4242


@pytest.mark.parametrize("path", CHANGES)
def test_only_root_changes_anything(daemon: Serving, path: str) -> None:
    member = grp.getgrnam(GROUP).gr_gid
    status, answer = ask(daemon, path, "-X", "POST", group=member)
    assert status == 403
    assert answer == {"error": "only root may change anything", "hint": "run it with sudo"}
    assert daemon.source.views == Published().views


def test_what_was_asked_is_done_though_nobody_waits_for_the_answer(daemon: Serving) -> None:
    daemon.do(daemon.source.gate.clear)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.socket))
        client.sendall(b"POST /v1/reload HTTP/1.1\r\nHost: x\r\n\r\n")
        until(lambda: daemon.source.reloads == 1, "it has begun")
    get(daemon, "/v1/status")
    assert daemon.source.reloaded == 0
    daemon.do(daemon.source.gate.set)
    until(lambda: daemon.source.reloaded == 1, "it is done")


class TestLimits:
    """No more than two clients, and one more of root's."""

    @pytest.fixture(autouse=True)
    def _few(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(door, "CLIENTS", 2)
        monkeypatch.setattr(door, "ROOT_CLIENTS", 1)

    def test_one_too_many_gets_an_answer_and_another_may_come_later(self, daemon: Serving) -> None:
        with ExitStack() as stack:
            for _ in range(2):
                self.connected(daemon, stack)
            status, answer = ask(daemon, "/v1/status", group=grp.getgrnam(GROUP).gr_gid)
            assert (status, answer["error"]) == (503, "too many clients at once")
        until(
            lambda: ask(daemon, "/v1/status", group=grp.getgrnam(GROUP).gr_gid)[0] == 200,
            "a client finds room again",
        )

    def test_readers_do_not_keep_root_from_stopping_us(self, daemon: Serving) -> None:
        with ExitStack() as stack:
            for _ in range(2):
                self.connected(daemon, stack)
            answer = get(daemon, "/v1/nics/lab:lab/disarm", "-XPOST")
            assert answer["armed"] is False

    def test_refused_clients_that_say_nothing_are_disconnected(self, daemon: Serving) -> None:
        with ExitStack() as stack:
            for _ in range(3):
                self.connected(daemon, stack)
            for _ in range(door.REFUSED + 3):
                assert b"503" in self.connected(daemon, stack).recv(100)
            silent = self.connected(daemon, stack)
            silent.settimeout(30)
            while silent.recv(4096):
                pass

    def connected(self, daemon: Serving, stack: ExitStack) -> socket.socket:
        """A client that has come in, or was refused."""
        client = stack.enter_context(socket.socket(socket.AF_UNIX))
        client.settimeout(30)
        client.connect(str(daemon.socket))
        daemon.do(lambda: None)
        return client


class TestPace:
    """A user that asks too much waits, and nobody else does."""

    @pytest.fixture(autouse=True)
    def _open(self, daemon: Serving) -> None:
        daemon.socket.chmod(0o666)

    def asked(
        self, daemon: Serving, stack: ExitStack, uid: int, *paths: str
    ) -> tuple[socket.socket, list[bytes]]:
        """A client that keeps its connection, and the first bytes of each answer."""
        client, answers = stack.enter_context(connected(daemon.socket, uid)), []
        for path in paths:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            answers.append(client.recv(1 << 16)[:12])
        return client, answers

    def wait(self, daemon: Serving, *asking: tuple[socket.socket, str]) -> None:
        """These requests are not answered, though root's are. They are sent at once: a client that
        says nothing for long is disconnected."""
        for client, path in asking:
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        for _ in range(20):
            get(daemon, "/v1/status")
        for client, _ in asking:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):
                client.recv(1)

    def test_a_user_that_asks_too_often(
        self, daemon: Serving, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(door, "EVERY_S", 60.0)
        monkeypatch.setattr(door, "REQUESTS_AT_ONCE", 2)
        with ExitStack() as stack:
            first, answers = self.asked(daemon, stack, NOBODY, "/v1/status", "/nowhere")
            assert answers == [b"HTTP/1.1 200", b"HTTP/1.1 404"]
            second, _ = self.asked(daemon, stack, NOBODY)
            self.wait(daemon, (first, "/v1/status"), (second, "/nowhere"))
            _, answers = self.asked(daemon, stack, NOBODY - 1, "/v1/status")
            assert answers == [b"HTTP/1.1 200"]

    @pytest.mark.parametrize("path", ["/v1/flows", "/v1/flows?comm=nobodys", "/v1/flows/stream"])
    def test_a_user_whose_answers_take_long(
        self, daemon: Serving, monkeypatch: pytest.MonkeyPatch, path: str
    ) -> None:
        monkeypatch.setattr(door, "EVERY_S", 0.0)
        monkeypatch.setattr(door, "REST", 1e9)
        with ExitStack() as stack:
            cheap, answers = self.asked(daemon, stack, NOBODY, *["/v1/status"] * 100)
            assert set(answers) == {b"HTTP/1.1 200"}
            long = stack.enter_context(connected(daemon.socket, NOBODY))
            long.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = b"".join(iter(lambda: long.recv(1 << 16), b""))  # it has been paid for then
            assert answer.startswith(b"HTTP/1.1 200")
            self.wait(daemon, (cheap, "/v1/status"))


# The socket file, and clients that send or take nothing


def test_a_stale_socket_is_replaced_and_gone_after_a_stop(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(tmp_path / "atfnd.sock"))
    for path in (tmp_path / "atfnd.sock", tmp_path / "new" / "atfnd.sock"):
        with serving(path) as running:
            assert get(running, "/v1/status")["pid"] == 4242
        assert not path.exists()


def test_a_stop_leaves_a_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "atfnd.sock"
    with serving(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


def test_a_second_daemon_is_refused_and_the_first_goes_on(daemon: Serving) -> None:
    with (
        pytest.raises(OperatorError, match="a daemon already answers") as caught,
        serving(daemon.socket),
    ):
        pass
    assert caught.value.exit_code == 2
    assert get(daemon, "/v1/status")["pid"] == 4242


@pytest.mark.parametrize("name", ["file", "directory", "far/away/atfnd.sock", "x" * 120])
def test_a_path_that_cannot_be_a_socket(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "directory").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OperatorError) as caught, serving(tmp_path / name):
        pass
    assert caught.value.exit_code == 2
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "precious"


def test_a_stop_ends_idle_connections(tmp_path: Path) -> None:
    client = socket.socket(socket.AF_UNIX)
    with client:
        with serving(tmp_path / "atfnd.sock") as running:
            client.connect(str(running.socket))
            client.setblocking(False)
            until(lambda: get(running, "/v1/status"), "an answer while a client is idle")
        client.settimeout(10)
        assert not client.recv(1)


@pytest.mark.parametrize(
    ("head", "answer"),
    [
        (b"GET /v1/status HTTP/1.1\r\nHost:", b""),
        (b"POST /v1/nics/eth1/arm HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
         b"HTTP/1.1 408"),
    ],
    ids=["head", "body"],
)  # fmt: skip
def test_who_does_not_send_all_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, answer: bytes
) -> None:
    monkeypatch.setattr("atfnd.serve.api.requests.READ_S", 0.1)
    with serving(tmp_path / "atfnd.sock") as running, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(running.socket))
        client.sendall(head)
        assert client.recv(12) == answer
        assert not running.source.views[1].armed


def test_a_client_that_takes_nothing_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.serve.api.answers.WRITE_S", 0.1)
    source = Published()
    for n in range(1000):
        source.table.put(flow(n)._replace(why=Code.KERNEL("because " * 100)))
    with serving(tmp_path / "atfnd.sock", source) as running:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(running.socket))
            client.sendall(b"GET /v1/flows?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
            hung_up = select.poll()
            hung_up.register(client, select.POLLHUP)
            until(lambda: hung_up.poll(0), "the server hangs up")
        assert get(running, "/v1/status")["pid"] == 4242


# Where there is no descriptor left for a connection


CLIENTS = 2


class Full(socket.socket):
    """Has no room at first."""

    tries = 0

    def accept(self) -> tuple[socket.socket, Any]:
        self.tries += 1
        if self.tries == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_without_room_it_rests_and_then_takes_those_who_waited(tmp_path: Path) -> None:
    async def run() -> None:
        loop, refused, served = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        arrived: list[float] = []

        def protocol() -> asyncio.Protocol:
            arrived.append(loop.time())
            if len(arrived) == CLIENTS:
                served.set()
            return asyncio.Protocol()

        loop.set_exception_handler(lambda *_: refused.set())
        with ExitStack() as stack:
            listener = stack.enter_context(Full(socket.AF_UNIX))
            listener.bind(str(tmp_path / "socket"))
            listener.setblocking(False)
            accepting = Accepting(listener, protocol, 0)
            stack.callback(accepting.close)
            for _ in range(CLIENTS):
                client = stack.enter_context(socket.socket(socket.AF_UNIX))
                client.connect(str(tmp_path / "socket"))
            await asyncio.wait_for(refused.wait(), 30)
            refused_s = loop.time()
            await asyncio.wait_for(served.wait(), 30)
            assert listener.tries == 1 + CLIENTS
            assert arrived[0] - refused_s > NO_ROOM_S / 2

    asyncio.run(run())
