# SPDX-License-Identifier: GPL-2.0-or-later
"""Real servers of several workers get no filter that brings all of a port to one queue.

nginx, memcached and unbound as Debian has them, unpacked beside the system and not installed.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

from atfnd.kernel.system.netns import open_socket
from atfnd.model import FlowKey, Protocol
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.fetch import servers
from tests.kernel.netns import listening
from tests.labs import HOST, PEER, Lab, packed
from tests.wait import until

pytestmark = pytest.mark.usefixtures("own_affinity")

V4 = socket.AF_INET
PORT = 5400
STRICT = policy(order="strict")
QUERY = struct.pack("!HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\1a\4test\0" + struct.pack("!HH", 1, 1)

NGINX = """
daemon off; user root; worker_processes 2; pid {0}/pid; error_log stderr;
events {{ accept_mutex off; }}
http {{
  access_log off;
  client_body_temp_path {0}; proxy_temp_path {0}; fastcgi_temp_path {0};
  uwsgi_temp_path {0}; scgi_temp_path {0};
  server {{ listen {1}:{2}; return 200 "x"; }}
}}
"""
UNBOUND = """
server:
  num-threads: 2
  so-reuseport: yes
  interface: {1}
  port: {2}
  access-control: 10.0.0.0/8 allow
  do-daemonize: no
  use-syslog: no
  username: ""
  chroot: ""
  directory: {0}
  pidfile: {0}/pid
  local-zone: "test." static
  local-data: "a.test. A 10.0.0.1"
remote-control:
  control-enable: no
"""


@contextmanager
def running(lab: Lab, folder: Path, program: str, *words: str) -> Iterator[None]:
    """In the host's namespace."""
    tree = servers()
    libraries = f"{tree}/usr/lib/x86_64-linux-gnu:{tree}/lib/x86_64-linux-gnu"
    with (folder / "server").open("w") as said:
        made = subprocess.Popen(
            ["ip", "netns", "exec", f"{lab.name}-host", str(tree / program), *words],
            env={**os.environ, "LD_LIBRARY_PATH": libraries}, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            yield
        finally:
            os.killpg(made.pid, 9)
            made.wait()


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf", STRICT) as made:
        made.start()
        yield made


def has_port_rule(bed: Bed, protocol: Protocol = Protocol.TCP) -> bool:
    """The NIC has a filter for all packets of the port."""
    matches = [rule.match for rule in bed.lab.nic.filters() if rule.match is not None]
    wanted = protocol, PORT, None
    return any((match.protocol, match.dst_port, match.src_port) == wanted for match in matches)


def connected(lab: Lab, undo: ExitStack) -> socket.socket:
    made = undo.enter_context(open_socket(lab.netns["peer"], V4, socket.SOCK_STREAM))
    made.settimeout(10)
    made.connect((HOST[V4], PORT))
    return made


def why(bed: Bed, address: str, port: int) -> str:
    key = FlowKey(Protocol.TCP, packed(HOST[V4]), PORT, packed(address), port)
    return str(bed.daemon.get(f"/v1/explain?flow={quote(str(key))}")["chain"])


def has_none_before_anybody_reads(bed: Bed) -> None:
    """It is seen that the process that listens is not alone. A filter of its first moment goes."""
    until(lambda: listening(f"{bed.lab.name}-host", PORT), "it listens")
    said = "No filter for the port: process"
    until(lambda: said in why(bed, PEER[V4], 1), "it is not known who will read")
    until(lambda: not has_port_rule(bed), "it has no rule")


def has_none_at_work(bed: Bed, work: Callable[[], str]) -> None:
    """Two are seen to read."""
    until(lambda: "both read its connections" in work(), "both read", 30)
    until(lambda: not has_port_rule(bed), "it has no rule")
    for _ in range(20):
        work()
        assert not has_port_rule(bed)


def test_nginx_with_two_workers_and_short_connections(lab: Lab, bed: Bed, tmp_path: Path) -> None:
    config = tmp_path / "nginx.conf"
    config.write_text(NGINX.format(tmp_path, HOST[V4], PORT))

    def work() -> str:
        """Eight short connections at once."""
        with ExitStack() as undo:
            clients = [connected(lab, undo) for _ in range(8)]
            for each in clients:
                each.send(b"GET / HTTP/1.0\r\n\r\n")
            for each in clients:
                assert each.recv(4096).startswith(b"HTTP/1.1 200")
            return why(bed, *clients[0].getsockname())

    with running(lab, tmp_path, "usr/sbin/nginx", "-c", str(config), "-e", "stderr"):
        has_none_before_anybody_reads(bed)
        has_none_at_work(bed, work)


def test_memcached_with_two_threads_and_long_connections(
    lab: Lab, bed: Bed, tmp_path: Path
) -> None:
    words = ("-t", "2", "-u", "root", "-l", HOST[V4], "-p", str(PORT), "-U", "0")
    with running(lab, tmp_path, "usr/bin/memcached", *words), ExitStack() as undo:
        has_none_before_anybody_reads(bed)
        clients = [connected(lab, undo) for _ in range(8)]

        def work() -> str:
            for each in clients:
                each.send(b"get x\r\n")
                assert each.recv(100) == b"END\r\n"
            return why(bed, *clients[0].getsockname())

        has_none_at_work(bed, work)


def test_unbound_with_two_threads_and_sockets(lab: Lab, bed: Bed, tmp_path: Path) -> None:
    config = tmp_path / "unbound.conf"
    config.write_text(UNBOUND.format(tmp_path, HOST[V4], PORT))
    key = FlowKey(Protocol.UDP, packed(HOST[V4]), PORT, bytes(4), 0)
    with running(lab, tmp_path, "usr/sbin/unbound", "-c", str(config)), ExitStack() as undo:
        client = undo.enter_context(open_socket(lab.netns["peer"], V4, socket.SOCK_DGRAM))
        client.settimeout(1)

        def answered() -> bool:
            client.sendto(QUERY, (HOST[V4], PORT))
            try:
                return bool(client.recv(512))
            except TimeoutError:
                return False

        until(answered, "it answers")

        def left() -> bool:
            for _ in range(200):
                answered()
            assert not has_port_rule(bed, Protocol.UDP)
            row = bed.daemon.flow(key)
            whys = "SO_REUSEPORT", "wanders"  # which one is the scheduler's choice
            return row is not None and any(why in row["why"] for why in whys)

        until(left, "it is known, and left", 30)
        until(lambda: not has_port_rule(bed), "two sockets listen for TCP", 30)
