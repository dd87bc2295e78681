# SPDX-License-Identifier: GPL-2.0-or-later
"""A control group of one's own, and the processes in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from atfnd.kernel.system.cgroup import open_root

__all__ = ["GROUP", "UNIT", "a_group"]

GROUP = f"atfnd-test-{os.getpid()}.slice"
UNIT = "echo.service"


@contextmanager
def a_group() -> Iterator[Callable[[str | None], None]]:
    """Makes `/GROUP/UNIT`; what is handed on moves us (None: back), and with us whom we start."""
    root, ours = open_root(), Path("/proc/self/cgroup").read_text().splitlines()
    home = next(line for line in ours if line.startswith("0::/")).removeprefix("0::/") or "."

    def move(group: str | None) -> None:
        procs = os.open(f"{group or home}/cgroup.procs", os.O_WRONLY, dir_fd=root)
        try:
            os.write(procs, f"{os.getpid()}\n".encode())
        finally:
            os.close(procs)

    with ExitStack() as undo:
        undo.callback(os.close, root)
        for each in (GROUP, f"{GROUP}/{UNIT}"):
            os.mkdir(each, dir_fd=root)
            undo.callback(os.rmdir, each, dir_fd=root)
        undo.callback(move, None)
        yield move
