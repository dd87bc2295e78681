# SPDX-License-Identifier: GPL-2.0-or-later
"""The real irqbalance, as a process of a test; on the machine it cannot move an interrupt there."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.kernel.interrupts.irqbalance import spared
from tests.guest.fetch import irqbalance
from tests.wait import until

__all__ = ["balancer", "spares"]

_SOCKETS = Path("/run/irqbalance")
# In a mount namespace of its own: its socket is made in a folder of the test, and what it would
# write of interrupts is refused.
_HANDS_TIED = (
    "mount --bind /proc/irq /proc/irq && mount -o remount,ro,bind /proc/irq && "
    "mount -t tmpfs none /run && mkdir /run/irqbalance && mount --bind {} /run/irqbalance && "
)


@contextmanager
def balancer(
    *options: str, tied: Path | None, interval_s: int = 1, banned_cpus: Iterable[int] = ()
) -> Iterator[int]:
    """Its pid, once it answers. It looks at the interrupts every `interval_s`. Tied, it moves none,
    and its socket is in the folder `irqbalance` of this one."""
    tree = irqbalance()
    libraries = [tree / "usr/lib/x86_64-linux-gnu", tree / "lib/x86_64-linux-gnu"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    if banned := ",".join(map(str, banned_cpus)):
        environment["IRQBALANCE_BANNED_CPULIST"] = banned
    words = [str(tree / "usr/sbin/irqbalance"), "--foreground", f"--interval={interval_s}"]
    sockets = _SOCKETS if tied is None else tied / "irqbalance"
    sockets.mkdir(exist_ok=True)
    tie = "" if tied is None else _HANDS_TIED.format(shlex.quote(str(sockets)))
    script = f"{tie}exec {shlex.join([*words, *options])}"
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: spared(process.pid, tied) is not None, "irqbalance answers", 60)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def spares(pid: int) -> set[int]:
    """What it leaves alone. AssertionError: it does not say."""
    banned = spared(pid, patience_s=30)
    assert banned is not None
    return set(banned)
