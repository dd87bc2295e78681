# SPDX-License-Identifier: GPL-2.0-or-later
"""The real irqbalance, as a process of a test; on the machine it cannot move an interrupt there."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from atfnd.kernel.irqbalance import spared
from tests.guest.fetch import irqbalance
from tests.wait import until

__all__ = ["balancer", "spares"]

SOCKETS = Path("/run/irqbalance")
# In a mount namespace of its own: what it would write there is refused.
_HANDS_TIED = "mount --bind /proc/irq /proc/irq && mount -o remount,ro,bind /proc/irq && "


@contextmanager
def balancer(*options: str, interval_s: int = 1, tied: bool = True) -> Iterator[int]:
    """Its pid, once it answers. It looks at the interrupts every `interval_s`."""
    tree = irqbalance()
    libraries = [tree / "usr/lib/x86_64-linux-gnu", tree / "lib/x86_64-linux-gnu"]
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    words = [str(tree / "usr/sbin/irqbalance"), "--foreground", f"--interval={interval_s}"]
    script = f"{_HANDS_TIED if tied else ''}exec {shlex.join([*words, *options])}"
    made = not SOCKETS.exists()
    SOCKETS.mkdir(exist_ok=True)
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script], env=environment, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: spared(process.pid) is not None, "irqbalance answers", 60)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)
        if made:
            SOCKETS.rmdir()


def spares(pid: int) -> set[int]:
    """What it leaves alone. AssertionError: it does not say."""
    told = spared(pid, patience_s=30)
    assert told is not None
    return set(told)
