# SPDX-License-Identifier: GPL-2.0-or-later
"""A network namespace of a test's own with a veth pair of several queues in it."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.kernel.system.netns import path_of

__all__ = ["QUEUES", "Namespace", "a_namespace", "xdp_pass"]

QUEUES = 4
XDP_PASS = """
__attribute__((section("xdp"), used)) int pass(void *context) { return 2; }
char _license[] __attribute__((section("license"), used)) = "GPL";
"""
_names = itertools.count()


class Namespace:
    """`v0` and `v1` are a pair, up, with four queues each and NAPI (GRO on)."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = path_of(name)

    def ip(self, command: str) -> str:
        return self._run(f"ip -n {self.name} {command}")

    def ethtool(self, command: str) -> str:
        return self._run(f"ip netns exec {self.name} ethtool {command}")

    def read(self, path: str) -> str:
        """A file of its /sys or /proc."""
        return self._run(f"ip netns exec {self.name} cat {path}").strip()

    @staticmethod
    def _run(command: str) -> str:
        done = subprocess.run(command.split(), check=True, capture_output=True, text=True)
        return done.stdout


@contextmanager
def a_namespace() -> Iterator[Namespace]:
    made = Namespace(f"eth{os.getpid()}n{next(_names)}")
    subprocess.run(["ip", "netns", "add", made.name], check=True)
    try:
        ends = [f"name {end} numrxqueues {QUEUES} numtxqueues {QUEUES}" for end in ("v0", "v1")]
        made.ip(f"link add {ends[0]} type veth peer {ends[1]}")
        for end in ("v0", "v1"):
            made.ethtool(f"-L {end} rx {QUEUES} tx {QUEUES}")
            made.ethtool(f"-K {end} gro on")
            made.ip(f"link set {end} up")
        yield made
    finally:
        subprocess.run(["ip", "netns", "del", made.name], check=True)


def xdp_pass(directory: Path) -> Path:
    """The object file of an XDP program that lets everything pass."""
    source, compiled = directory / "pass.c", directory / "pass.o"
    source.write_text(XDP_PASS)
    compiler = ["clang", "-O2", "-g", "-target", "bpf"]
    subprocess.run([*compiler, "-c", str(source), "-o", str(compiled)], check=True)
    return compiled
