# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the daemon answers: a socket for all users that may read, and one beside it for root
alone."""

from __future__ import annotations

from pathlib import Path

__all__ = ["of_root"]


def of_root(path: Path) -> Path:
    """`/run/atfnd/atfnd-root.sock` beside `/run/atfnd/atfnd.sock`. Only root can fill its backlog,
    so that root's `disarm` always comes in."""
    return path.with_name(f"{path.stem}-root{path.suffix}")
