# SPDX-License-Identifier: GPL-2.0-or-later
"""A port of several workers has no rule, and one of a single worker has.

The server is one of ours, built as nginx is. Real ones are in tests/daemon/test_servers.py.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from atfnd.kernel.system.netns import open_socket
from atfnd.model import Filter, FlowKey, Protocol
from tests.bed import a_bed
from tests.daemons import Daemon, policy
from tests.labs import HOST, PEER, Lab, packed
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
PORT = 5100
AT_ONCE = policy(order="strict", unowned="rss")  # ports of servers that are not pinned

# A server as nginx is one: it listens, then forks two workers that take turns to accept.
WORKERS = """
import os, socket, sys
cpus = sorted(os.sched_getaffinity(0))[:2]
listener = socket.create_server(("", int(sys.argv[1])), backlog=64)
print("listens", flush=True)
sys.stdin.readline()
for cpu in cpus[: int(sys.argv[2])]:
    if os.fork() == 0:
        os.sched_setaffinity(0, {cpu})
        while True:
            connection, _ = listener.accept()
            while data := connection.recv(4096):
                connection.sendall(data)
            connection.close()
sys.stdin.read()
os.killpg(0, 15)
"""


@contextmanager
def server(lab: Lab, workers: int) -> Iterator[subprocess.Popen[str]]:
    """It listens; another line to it, and its workers accept."""
    command = ["ip", "netns", "exec", f"{lab.name}-host", sys.executable, "-c", WORKERS]
    made = subprocess.Popen(
        [*command, str(PORT), str(workers)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert made.stdout is not None
        assert made.stdout.readline() == "listens\n"
        yield made
    finally:
        os.killpg(made.pid, 9)
        made.wait()


def port_rule(lab: Lab) -> Filter | None:
    """The rule in the NIC for all connections of the port."""
    for rule in lab.nic.filters():
        if rule.match is not None and (rule.match.dst_port, rule.match.src_port) == (PORT, None):
            return rule
    return None


def ask(lab: Lab) -> int:
    """A short connection. Returns the port it came from."""
    with open_socket(lab.netns["peer"], V4, socket.SOCK_STREAM) as client:
        client.settimeout(10)
        client.connect((HOST[V4], PORT))
        client.send(b"x")
        assert client.recv(1) == b"x"
        return int(client.getsockname()[1])


def why(daemon: Daemon, port: int) -> str:
    key = FlowKey(Protocol.TCP, packed(HOST[V4]), PORT, packed(PEER[V4]), port)
    return str(daemon.get(f"/v1/explain?flow={quote(str(key))}")["chain"])


@pytest.mark.parametrize("workers", [1, 2])
def test_a_port_of_two_workers_has_no_rule_and_one_of_one_has(
    lab: Lab, tmp_path: Path, workers: int
) -> None:
    with ExitStack() as undo:
        bed = undo.enter_context(a_bed(lab, tmp_path, "bpf", AT_ONCE))
        bed.start()
        made = undo.enter_context(server(lab, workers))
        assert made.stdin is not None
        until(lambda: port_rule(lab), "a single listener is taken for the server")
        made.stdin.write("\n")
        made.stdin.flush()
        until(lambda: port_rule(lab) is None, "it is taken back before anybody connects")
        if workers == 1:
            until(lambda: ask(lab) and port_rule(lab), "one thread is seen to read")
            for _ in range(20):
                ask(lab)
            assert port_rule(lab) is not None
            return
        until(lambda: "both read" in why(bed.daemon, ask(lab)), "both are seen to read")
        assert "No filter for the port: threads" in why(bed.daemon, ask(lab))
        until(lambda: ask(lab) and port_rule(lab) is None, "it has no rule")
