# SPDX-License-Identifier: GPL-2.0-or-later
"""`python -m atfnd` is the command `atfnd`."""

from __future__ import annotations

from atfnd.cli.commands import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
