# SPDX-License-Identifier: GPL-2.0-or-later
"""Connecting to a Unix socket as another user."""

from __future__ import annotations

import os
import socket
from pathlib import Path

__all__ = ["NOBODY", "connected"]

NOBODY = 65534


def connected(path: Path, uid: int, timeout_s: float = 30.0) -> socket.socket:
    """A connection of a process of `uid`'s: SO_PEERCRED is who it acts as when it connects."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(timeout_s)
    os.seteuid(uid)
    try:
        client.connect(str(path))
    finally:
        os.seteuid(0)
    return client
