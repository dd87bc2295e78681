# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnctl: looks at a running daemon and tells it a few things, all over its Unix socket.

Exit codes: 0 done, 1 the daemon refused or the answer is "no", 2 usage or bad input, 3 daemon
unreachable. If our output is closed early (`| head`), the exit code is 0.
"""

from __future__ import annotations

import os
import sys

from atfnd.errors import OperatorError

__all__ = ["main"]


def main() -> None:
    """Run one verb and exit."""
    from atfnd.ctl.output import OutputClosed
    from atfnd.ctl.top.verb import app

    try:
        app(prog_name="atfnctl")
    except OperatorError as error:
        sys.exit(error.tell("atfnd"))
    except OutputClosed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        sys.exit(0)
