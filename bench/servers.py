# SPDX-License-Identifier: GPL-2.0-or-later
"""Real servers, as Debian has them: unpacked beside the system by the first bench that needs them
and not installed (`tests/guest/fetch.py`). Each listens on PORT of a bed's host until its `with`
ends, with nothing of the machine's configuration.

`rr` is our own server, which needs no package. A pool listens on as many ports, from PORT on.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.bed import Bed, succeed
from bench.children import Child, child, program, until
from bench.traffic.requests import Asked
from tests.guest.fetch import programs, unpacked

__all__ = ["PORT", "SERVERS", "Server", "at_hand", "pin_workers", "running", "threads_of"]

PORT = 5400
INSTALLED = Path("/")
PACKED = "applications"  # the folder of the unpacked packages
PACKAGES = (
    "nginx-light", "haproxy", "redis-server", "memcached", "unbound", "postgresql-15",
)  # fmt: skip
BODY = "x" * 512
POOL = 8
HTTP = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
SHORT = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
QUERY = struct.pack("!HHHHHH", 1, 0x100, 1, 0, 0, 0) + b"\1a\4test\0" + struct.pack("!HH", 1, 1)
PING = b"*1\r\n$4\r\nPING\r\n"
SET = b"*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$4000\r\n" + 4000 * b"x" + b"\r\n"
SEGMENT = bytes(1448)  # of a frame of 1500 bytes with TCP's timestamps
STREAM = Asked("tcp", 2 * SEGMENT, times=23)
DATAGRAMS = Asked("udp", SEGMENT, b"hello", times=46)
LOAD = Path(__file__).parents[1] / "build/guest/counted/load"  # counted/build.py
NOBODY = 65534

NGINX = """
daemon off; user root; worker_processes {workers}; pid {folder}/pid; error_log stderr;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000000; keepalive_timeout 1h;
  client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
  uwsgi_temp_path {folder}; scgi_temp_path {folder};
  server {{ listen {address}:{port} backlog=4096 {options}; return 200 "{body}"; }}
}}
"""
HAPROXY = """
global
  maxconn 8192
  nbthread 1
defaults
  mode http
  timeout client 1h
  timeout server 1h
  timeout connect 5s
frontend all
  bind {address}:{port}
  http-request return status 200 content-type text/plain string {body}
"""
UNBOUND = """
server:
  num-threads: 1
  so-reuseport: no
  interface: {address}
  port: {port}
  access-control: 10.0.0.0/8 allow
  do-daemonize: no
  use-syslog: no
  username: ""
  chroot: ""
  directory: {folder}
  pidfile: {folder}/pid
  local-zone: "test." static
  local-data: "a.test. A 10.0.0.1"
remote-control:
  control-enable: no
"""


def _startup() -> bytes:
    """PostgreSQL's StartupMessage (Frontend/Backend Protocol, 55.7)."""
    words = struct.pack("!I", 196608) + b"user\0nobody\0database\0postgres\0\0"
    return struct.pack("!I", len(words) + 4) + words


def _select() -> bytes:
    """A simple Query."""
    query = b"SELECT 1\0"
    return b"Q" + struct.pack("!I", len(query) + 4) + query


class _Place(NamedTuple):
    """Where a server runs."""

    tree: Path  # of unpacked packages
    folder: Path  # its own
    address: str

    def file(self, name: str, text: str, **values: object) -> str:
        """Written to its folder; the path."""
        path = self.folder / name
        path.write_text(
            text.format(folder=self.folder, address=self.address, port=PORT, body=BODY, **values)
        )
        return str(path)


def _nginx(workers: int, options: str = "") -> Callable[[_Place], tuple[str, ...]]:
    def command(place: _Place) -> tuple[str, ...]:
        config = place.file("nginx.conf", NGINX, workers=workers, options=options)
        return (str(place.tree / "usr/sbin/nginx"), "-c", config, "-e", "stderr")

    return command


def _haproxy(place: _Place) -> tuple[str, ...]:
    return (str(place.tree / "usr/sbin/haproxy"), "-db", "-f", place.file("ha", HAPROXY))


def _redis(place: _Place, port: int = PORT) -> tuple[str, ...]:
    # Debian's redis-server is a link to redis-check-rdb, which looks at its name
    words = ("--bind", place.address, "--port", str(port), "--save", "", "--protected-mode", "no")
    return (str(place.tree / "usr/bin/redis-server"), *words)


def _redis_pool(count: int) -> Callable[[_Place], tuple[str, ...]]:
    def command(place: _Place) -> tuple[str, ...]:
        each = (_redis(place, PORT + number) for number in range(count))
        started = (f"setpriv --pdeathsig KILL {shlex.join(command)} &" for command in each)
        return ("sh", "-c", f"{' '.join(started)} wait")

    return command


def _memcached(place: _Place) -> tuple[str, ...]:
    words = ("-t", "1", "-u", "root", "-l", place.address, "-p", str(PORT), "-U", "0")
    return (str(place.tree / "usr/bin/memcached"), *words, "-c", "8192")


def _unbound(place: _Place) -> tuple[str, ...]:
    config = place.file("unbound.conf", UNBOUND)
    return ("sh", "-c", f"exec {place.tree / 'usr/sbin/unbound'} -c {config} 2>&1")


def _postgres(place: _Place) -> tuple[str, ...]:
    """It refuses to run as root, and whom it runs as cannot reach a cache in root's home: there is
    a mount of it in the server's folder, for the server alone."""
    tree, data = place.folder / "tree", place.folder / "data"
    tree.mkdir()
    shutil.chown(place.folder, NOBODY, NOBODY)
    programs, user = tree / "usr/lib/postgresql/15/bin", f"setpriv --reuid={NOBODY}"
    begin = f"mount --bind {place.tree} {tree} && exec {user} --regid={NOBODY} --clear-groups"
    begin += f" env {_libraries(tree)}"

    def command(*words: object) -> tuple[str, ...]:
        return ("unshare", "--mount", "sh", "-c", f"{begin} {' '.join(map(str, words))}")

    with child(*command(programs / "initdb", "-D", data, "-A trust -U nobody -N")) as initdb:
        initdb.wait(120)
    (data / "pg_hba.conf").write_text("host all all 10.0.0.0/8 trust\n")
    where = f"-h {place.address} -p {PORT} -k ''"
    return command(programs / "postgres", "-D", data, where, "-N 300 -F 2>&1")


def _receiver(asked: Asked) -> Callable[[_Place], tuple[str, ...]]:
    """Ours: a byte is the answer to a block."""
    block = asked.times * len(asked.request)
    return lambda place: (str(LOAD), "receive", asked.means, place.address, str(PORT), str(block))


def _rr(place: _Place) -> tuple[str, ...]:
    return program("rr", place.address, PORT)


class Server(NamedTuple):
    """`workers`: threads or processes that serve, 0: one for each connection. With one, a filter
    for its port can bring every packet to its CPU."""

    command: Callable[[_Place], tuple[str, ...]]
    asked: Asked
    workers: int
    says: str | None = None  # when it is ready. None: it is when it listens
    ports: int = 1  # from PORT on


SERVERS = {
    "nginx": Server(_nginx(1), Asked("tcp", HTTP), 1),
    "nginx-4": Server(_nginx(4, "reuseport"), Asked("tcp", HTTP), 4),
    "nginx-short": Server(_nginx(1), Asked("short", SHORT), 1),
    "haproxy": Server(_haproxy, Asked("tcp", HTTP), 1),
    "redis": Server(_redis, Asked("tcp", PING), 1),
    "redis-8": Server(_redis_pool(POOL), Asked("tcp", PING), POOL, ports=POOL),
    "redis-set": Server(_redis, Asked("tcp", SET), 1),
    "redis-set-2": Server(_redis_pool(2), Asked("tcp", SET), 2, ports=2),
    "memcached": Server(_memcached, Asked("tcp", b"get x\r\n"), 1),
    "postgresql": Server(_postgres, Asked("tcp", _select(), _startup()), 0, "ready to accept"),
    "unbound-1": Server(_unbound, Asked("udp", QUERY), 1, "start of service"),
    "stream": Server(_receiver(STREAM), STREAM, 1),
    "stream-udp": Server(_receiver(DATAGRAMS), DATAGRAMS, 1),
    "rr": Server(_rr, Asked("tcp", bytes(64)), 1, "ready"),
}


def at_hand() -> tuple[str, Path]:
    """A server that needs no download, and the tree of its program: nginx or redis, unpacked by a
    bench before or installed; else our own."""
    for name, path in (("nginx", "usr/sbin/nginx"), ("redis", "usr/bin/redis-server")):
        for tree in (unpacked(PACKED), INSTALLED):
            if (tree / path).exists():
                return name, tree
    return "rr", INSTALLED


def _libraries(tree: Path) -> str:
    return f"LD_LIBRARY_PATH={tree}/usr/lib/x86_64-linux-gnu:{tree}/lib/x86_64-linux-gnu"


@contextlib.contextmanager
def running(name: str, bed: Bed, folder: Path, tree: Path | None = None) -> Iterator[Child]:
    """The server, listening. `tree`: where its program is, with its libraries; None: where the
    packages are unpacked, which are downloaded if they are not there. OperatorError: they cannot be
    had, or it ends."""
    tree = tree or programs(PACKED, *PACKAGES)
    place = _Place(tree, folder, bed.address)
    folder.chmod(0o755)
    server = SERVERS[name]
    command = ("env", _libraries(tree), *server.command(place))
    apart = bed.cpus if bed.spare else None
    with child(*command, netns=bed.host, cpus=apart) as process:
        if server.says is not None:
            process.said(server.says)

        def ready() -> bool:
            process.check()
            return _listens(bed, server.ports)

        until(ready, f"{name} listens", 30)
        yield process


def _listens(bed: Bed, ports: int) -> bool:
    inside = ("ip", "netns", "exec", bed.host) if bed.host else ()
    wanted = f"sport >= :{PORT} and sport < :{PORT + ports}"
    return len(succeed(*inside, "ss", "-Htuln", wanted).splitlines()) >= ports


def threads_of(server: Child) -> dict[int, list[int]]:
    """The threads of each process of a server, its first one and all that it has forked, oldest
    first."""
    first = psutil.Process(server.pid)
    found = {}
    for process in sorted((first, *first.children(recursive=True)), key=lambda p: p.pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            found[process.pid] = sorted(thread.id for thread in process.threads())
    return found


def pin_workers(server: Child, workers: int, cpus: Sequence[int]) -> None:
    """One worker a CPU, in turn; a server of one thread with all its helpers on the first."""
    threads = threads_of(server)
    processes = list(threads)
    forked = processes[1:] if len(processes) > 1 else []
    for process, tids in threads.items():
        for number, tid in enumerate(tids):
            place = forked.index(process) if process in forked else 0 if forked else number
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(tid, {cpus[0 if workers == 1 else place % len(cpus)]})
