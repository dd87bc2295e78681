# SPDX-License-Identifier: GPL-2.0-or-later
"""What `./run` of the kit starts: measures on this machine, writes report.html into the working
directory, and leaves nothing else behind, also after Ctrl-C."""

from __future__ import annotations

import argparse
import os
import platform
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from atfnd.errors import OperatorError
from atfnd.kernel.system.mount import libc
from atfnd.kernel.system.netns import RUN_DIR
from atfnd.model import Cpu
from atfnd.observe.machine.topology import topology
from bench.ending import ended_in_order
from bench.kit.measuring import FULL, SHORT, measure, seconds
from bench.kit.page import page
from bench.machine import machine

__all__ = ["described", "layout", "main"]

REPORT = Path("report.html")
BTF = Path("/sys/kernel/btf/vmlinux")


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Whatever is written meanwhile, compiled Python too, is in one folder that ends with it; and
    so does the folder of named namespaces, if there was none before."""
    there = os.path.lexists(RUN_DIR)
    try:
        with tempfile.TemporaryDirectory(prefix="atfnd-kit-") as scratch:
            tempfile.tempdir = scratch
            os.environ |= {"TMPDIR": scratch, "PYTHONPYCACHEPREFIX": f"{scratch}/compiled"}
            yield
    finally:
        tempfile.tempdir = None
        if not there and os.path.isdir(RUN_DIR) and not os.listdir(RUN_DIR):
            libc.umount2(RUN_DIR.encode(), 0)  # umount(8) would leave /run/mount
            os.rmdir(RUN_DIR)


def _say(words: str) -> None:
    print(f"kit: {words}", flush=True)


def described(cpus: Sequence[Cpu]) -> dict[str, str]:
    """What is said of a machine, by name."""
    host = machine()
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", "not said")
    except OSError:
        system = "not said"
    return {
        "processor": host.cpu or "not said",
        "CPUs": layout(cpus),
        "frequency governor": host.governor or "not said",
        "memory": f"{host.memory_bytes / 2**30:.0f} GiB",
        "kernel": host.kernel,
        "system": system,
        "Python": host.python,
        "load average before": f"{host.load[0]:.1f}",
    }


def layout(cpus: Sequence[Cpu]) -> str:
    """How many of each, of those that say so."""
    parts: dict[str, set[object]] = {
        "cores": {cpu.smt for cpu in cpus},
        "last-level caches": {cpu.llc for cpu in cpus if cpu.llc},
        "NUMA nodes": {cpu.node for cpu in cpus if cpu.node is not None},
        "sockets": {cpu.package for cpu in cpus if cpu.package is not None},
    }
    counts = (f"{len(found)} {name}" for name, found in parts.items() if found)
    return f"{len(cpus)} ({', '.join(counts)})"


def main() -> None:
    """Exit 0 when the report is written; else one line and the error's code."""
    parser = argparse.ArgumentParser(prog="./run", description="What would atfnd do here?")
    parser.add_argument("programs", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--short", action="store_true", help="one server, a few minutes")
    given = parser.parse_args()
    plan = SHORT if given.short else FULL
    with ended_in_order():
        if os.geteuid():
            raise OperatorError("the kit needs root", "sudo ./run")
        if not BTF.exists():
            raise OperatorError(f"the kernel has no BTF ({BTF})", "Linux 6.8 or later with it")
        with _nothing_left():
            host = described(topology().cpus)
            _say(f"about {seconds(plan) / 60:.0f} minutes; Ctrl-C ends it and leaves nothing")
            began_s = time.monotonic()
            measured = measure(plan, given.programs, _say)
            at = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
            REPORT.write_text(page(measured, host, time.monotonic() - began_s, at))
    _say(f"written to {REPORT.absolute()}")


if __name__ == "__main__":
    main()
