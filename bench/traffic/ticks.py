# SPDX-License-Identifier: GPL-2.0-or-later
"""Writes the time (CLOCK_MONOTONIC, 8 bytes, little-endian) to standard output, again and again
with pauses around 1 ms: what an observer's events are to the daemon's loop."""

from __future__ import annotations

import os
import random
import time

__all__ = ["ticks"]

PAUSE_S = 0.001


def ticks() -> None:
    """Until the reader goes."""
    while True:
        time.sleep(random.uniform(0.5, 1.5) * PAUSE_S)
        os.write(1, time.monotonic_ns().to_bytes(8, "little"))


if __name__ == "__main__":
    ticks()
