# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast every socket of a namespace is listed: our two observers, pyroute2, `ss`.

`run` makes a namespace with established TCP connections over lo, held by processes of their own,
and in it a measuring process, which prints its samples as JSON. Each sample ends with what a user
of the contender gets: `SocketUse` tuples (with the application's byte count), pyroute2's message
objects, lines of text. pyroute2 and `ss` are not even asked for byte counts. The contenders take
turns, so a noisy machine treats them alike, and none pays for collecting another's garbage.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypedDict

from pyroute2 import DiagSocket, netns

from atfnd.observe import Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from atfnd.observe.sockets.sockdiag import SockDiagObserver

__all__ = ["Inventories", "run"]

_SPARE_FDS = 100
_PORT = 7000
_STATES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 8  # what our own dump asks for


class Inventories(TypedDict):
    """Seconds each contender took to list `sockets` sockets, one a round."""

    sockets: int
    seconds: dict[str, list[float]]


def run(sockets: int = 20_000, rounds: int = 9) -> Inventories:
    """Needs root."""
    name = f"atfnd-bench-{os.getpid()}"
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    a_holder = min(sockets, limit - _SPARE_FDS) // 2  # connections: both ends are held
    with ExitStack() as stack:
        netns.create(name)
        stack.callback(netns.remove, name)
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        subprocess.run(["ip", "-n", name, "addr", "add", "198.18.0.0/15", "dev", "lo"], check=True)
        for index in range(-(-sockets // 2 // a_holder)):
            count = min(a_holder, sockets // 2 - index * a_holder)
            holder = stack.enter_context(_inside(name, "hold", f"198.18.{index}.1", count))
            stack.callback(holder.kill)
            assert holder.stdout is not None
            holder.stdout.readline()
        with _inside(name, "measure", sockets, rounds) as measuring:
            answer, _ = measuring.communicate()
        if measuring.returncode:
            raise RuntimeError(f"the measuring process ended with {measuring.returncode}")
    return {"sockets": sockets, "seconds": json.loads(answer)}


def _inside(name: str, *args: object) -> subprocess.Popen[str]:
    command = ["ip", "netns", "exec", name, sys.executable, "-m", "bench.inventory"]
    return subprocess.Popen(
        [*command, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _hold(address: str, count: int) -> None:
    """Make `count` connections, say so, and keep them until stdin ends."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    held = []
    with socket.create_server((address, _PORT)) as listener:
        for _ in range(count):
            held += [socket.create_connection((address, _PORT)), listener.accept()[0]]
    print("ready", flush=True)
    sys.stdin.read()


def _measure(sockets: int, rounds: int) -> dict[str, list[float]]:
    bpf, sock_diag = BpfObserver(Qualify(0, 0, 0)), SockDiagObserver(Qualify(0, 0, 0))
    bpf.watch([None], {})
    sock_diag.watch([None], {})
    pyroute2 = DiagSocket()
    pyroute2.bind()

    def with_ss() -> int:
        listed = subprocess.run(["ss", "-tanHO"], stdout=subprocess.PIPE, check=True).stdout
        return listed.count(b"\n")

    contenders: dict[str, Callable[[], int]] = {
        "atfnd_bpf": lambda: len(bpf.inventory()),
        "atfnd_sock_diag": lambda: len(sock_diag.inventory()),
        "pyroute2": lambda: len(pyroute2.get_sock_stats(family=socket.AF_INET, states=_STATES)),
        "ss": with_ss,
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, contender in contenders.items():
            gc.collect()
            began = time.perf_counter()
            listed = contender()
            seconds[name].append(time.perf_counter() - began)
            if listed < sockets:
                raise RuntimeError(f"{name} lists {listed} of {sockets} sockets")
    pyroute2.close()
    bpf.close()
    sock_diag.close()
    return seconds


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["hold", address, count]:
            _hold(address, int(count))
        case ["measure", sockets, rounds]:
            print(json.dumps(_measure(int(sockets), int(rounds))))
