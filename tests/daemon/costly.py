# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon whose steering costs: while a NIC has a filter of ours, it burns most of a core.

python -m tests.daemon.costly COMMAND...
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

from atfnd.cli.commands import main
from atfnd.daemon.supervisor import Supervisor


def _burn(daemon: Supervisor) -> None:
    table, rest = daemon._engine.memory.table, threading.Event()
    while True:
        busy = any(table.filters_in(name) for name in list(daemon._sessions))
        until_s = time.monotonic() + 0.004 * busy
        while time.monotonic() < until_s:
            sum(range(100))
        rest.wait(0.002)


def costly() -> None:
    """Run the command."""
    build = Supervisor.__init__

    def init(self: Supervisor, *arguments: Any) -> None:
        build(self, *arguments)
        threading.Thread(target=_burn, args=(self,), daemon=True).start()

    Supervisor.__init__ = init  # type: ignore[method-assign, assignment]
    sys.argv = sys.argv[1:]
    main()


if __name__ == "__main__":
    costly()
