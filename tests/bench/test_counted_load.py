# SPDX-License-Identifier: GPL-2.0-or-later
"""How the client of the counted machine asks before it measures, by servers on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer, ThreadingUDPServer

import pytest

from bench.bed import succeed
from bench.children import child
from bench.counted.build import CC
from tests.wait import until

__all__: list[str] = []

SOURCE = Path(__file__).parents[2] / "bench/counted/load.c"
ADDRESS, PORT = "127.54.0.1", 5400
ANSWER = b"y" * 700
CONNECTIONS = 6


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("load") / "load"
    succeed(*CC, "-pthread", str(SOURCE), "-o", str(path), "-lm")
    return path


@contextlib.contextmanager
def serving(
    talk: Callable[[BaseRequestHandler], None],
    port: int = PORT,
    kind: type[ThreadingTCPServer | ThreadingUDPServer] = ThreadingTCPServer,
) -> Iterator[None]:
    """`talk` is called in a thread for each connection, or each datagram."""

    class Server(kind):  # type: ignore[misc, valid-type]
        allow_reuse_address = daemon_threads = True

    handler = type("Handler", (BaseRequestHandler,), {"handle": talk})
    with Server((ADDRESS, port), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


@contextlib.contextmanager
def asking(
    load: Path, means: str, *, ports: int = 1, prologue: bytes = b"", times: int = 1
) -> Iterator[None]:
    cpu = min(os.sched_getaffinity(0))
    where = (means, ADDRESS, PORT, ports, CONNECTIONS, cpu, cpu)
    command = (load, "ask", *where, 0, 1, 1, 1, "no.ko", times, b"ask".hex())
    with child(*map(str, command), prologue.hex()) as client:
        client.said("connected")
        yield


def test_connections_go_to_ports_in_turn(load: Path) -> None:
    asked: dict[int, set[int]] = {PORT: set(), PORT + 1: set()}

    def talk(handler: BaseRequestHandler) -> None:
        connection = handler.request
        while request := connection.recv(100):
            assert request == b"ask"
            asked[connection.getsockname()[1]].add(connection.getpeername()[1])
            connection.sendall(ANSWER)

    with serving(talk), serving(talk, PORT + 1), asking(load, "tcp", ports=2):
        until(lambda: [len(each) for each in asked.values()] == [CONNECTIONS / 2] * 2, "all asked")


def test_a_connection_for_each_request(load: Path) -> None:
    asked = []

    def talk(handler: BaseRequestHandler) -> None:
        connection = handler.request
        if request := connection.recv(100):
            asked.append(request)
            connection.sendall(ANSWER[:300])
            connection.sendall(ANSWER[300:])

    with serving(talk), asking(load, "short"):
        until(lambda: len(asked) > 5 * CONNECTIONS, "each has asked again")
    assert set(asked) == {b"ask"}


@pytest.mark.parametrize(("means", "prologue"), [("tcp", b""), ("udp", b"hello")])
def test_what_is_asked_in_parts_is_answered_when_all_came(
    load: Path, means: str, prologue: bytes
) -> None:
    where = ("receive", means, ADDRESS, str(PORT), str(3 * len(b"ask")))

    def connections() -> int:
        kind = f"-Hn{means[0]}"
        return len(succeed("ss", kind, "state", "established", f"sport = :{PORT}").splitlines())

    with child(str(load), *where):
        until(lambda: succeed("ss", f"-Hnl{means[0]}", f"sport = :{PORT}"), "it listens")
        with asking(load, means, prologue=prologue, times=3):  # the first one was answered
            until(lambda: connections() == CONNECTIONS, "each has a socket of its own")


def test_on_a_real_machine_it_says_when_its_window_is(load: Path) -> None:
    """One thread on any CPU: the client of the benches on the lab NIC."""

    def talk(handler: BaseRequestHandler) -> None:
        while handler.request.recv(100):
            handler.request.sendall(ANSWER)

    where = ("tcp", ADDRESS, PORT, 1, CONNECTIONS, "-", 0)
    words = map(str, (load, "ask", *where, 500.0, 100, 400, 1, "-", 1, b"ask".hex(), ""))
    with serving(talk), child(*words) as client:
        client.said("connected")
        os.kill(client.pid, signal.SIGUSR1)
        *said, last = client.wait(30).splitlines()
    assert said == ["connected", "measuring", "measured"]
    found = json.loads(last)
    assert found["ns"] >= 0.4e9
    assert 0 < len(found["took_ns"]) <= found["requests"]
