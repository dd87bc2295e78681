# SPDX-License-Identifier: GPL-2.0-or-later
"""What could not be recorded of `disarm` is said, and root's comes in, no matter who else keeps the
socket busy. That it is in force whatever fails, `test_operator` has."""

from __future__ import annotations

import asyncio
import grp
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from atfnd.ctl.client import Client
from atfnd.errors import OperatorError
from atfnd.serve.api.door import AT_ONCE, Accepting
from atfnd.socket_path import of_root
from tests.serve.asking import atfnctl, get, refusal
from tests.serve.peers import NOBODY
from tests.serve.published import Published, Serving, serving, three_flows
from tests.serve.test_api_peers import GROUP
from tests.wait import until

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
