# SPDX-License-Identifier: GPL-2.0-or-later
"""A network namespace for one test, and `tests.talker` processes in it."""

from __future__ import annotations

import ipaddress
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from pyroute2 import netns

from tests.zygote import Forked

__all__ = ["APP4", "APP6", "PEER4", "PEER6", "Net", "Talker", "listening", "packed"]

T = TypeVar("T")

APP4, PEER4, APP6, PEER6 = "10.77.0.1", "10.77.0.2", "fd77::1", "fd77::2"
_names = itertools.count()


def packed(address: str) -> bytes:
    return ipaddress.ip_address(address).packed


def listening(name: str, port: int) -> bool:
    """Some TCP socket of the namespace `name` listens on this port."""
    done = subprocess.run(
        ["ip", "netns", "exec", name, "ss", "-Htln", f"sport = :{port}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return bool(done.stdout)


class Net:
    """A namespace of our own with addresses on lo that are not loopback addresses."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.name = f"sdiag{os.getpid()}n{next(_names)}"
        self.path = f"/run/netns/{self.name}"
        netns.create(self.name)
        stack.callback(netns.remove, self.name)
        for command in (
            "link set lo up",
            *(f"addr add {address}/32 dev lo" for address in (APP4, PEER4)),
            *(f"addr add {address}/128 dev lo nodad" for address in (APP6, PEER6)),
        ):
            subprocess.run(["ip", "-n", self.name, *command.split()], check=True)

    def inside(self, work: Callable[[], T]) -> T:
        """Run in this namespace, on a thread of its own (the main thread never moves)."""
        result: list[T] = []

        def run() -> None:
            netns.setns(self.name)
            result.append(work())

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return result[0]

    def socket(self, family: int, kind: int) -> socket.socket:
        made = self.inside(lambda: socket.socket(family, kind))
        return self.stack.enter_context(made)

    def talker(self, *args: str) -> Talker:
        return Talker(self.stack, self.name, *args)


class Talker:
    """A `tests.talker` process in the namespace `name`, from its start on `cpu` if one is given."""

    def __init__(self, stack: ExitStack, name: str, *args: object, cpu: int | None = None) -> None:
        self.netns = name
        self.process = Forked(
            [sys.executable, "-m", "tests.talker", *map(str, args)],
            netns=name,
            cpu=cpu,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        stack.callback(self.stop)
        self.answer()

    def answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ok\n"

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.answer()

    def stop(self) -> None:
        with self.process:
            self.process.kill()
