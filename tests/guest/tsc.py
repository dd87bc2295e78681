# SPDX-License-Identifier: GPL-2.0-or-later
"""How fast this machine's TSC counts. So does the guest's, which misjudges it on a loaded host.

QEMU's TCG reads the host's TSC for rdtsc (accel/tcg, cpu_get_host_ticks).
"""

from __future__ import annotations

import ctypes
import mmap
import time
from collections.abc import Callable

__all__ = ["tsc_khz"]

# rdtsc; shl rdx, 32; or rax, rdx; ret
RDTSC = bytes.fromhex("0f31 48c1e220 4809d0 c3")
BASE_NS = 50_000_000
TRIES = 50


def tsc_khz() -> int:
    """Measured against CLOCK_MONOTONIC for 50 ms: some 20 ppm off at most."""
    with mmap.mmap(
        -1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    ) as page:
        page.write(RDTSC)
        hold = ctypes.c_char.from_buffer(page)
        read = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(hold))
        first_ns, first = _together(read)
        last_ns, last = first_ns, first
        while last_ns - first_ns < BASE_NS:
            last_ns, last = _together(read)
        del read, hold  # the page has no other user
    return round((last - first) * 1_000_000 / (last_ns - first_ns))


def _together(read: Callable[[], int]) -> tuple[int, int]:
    """Both clocks at the same moment: of many readings, the one that was interrupted least."""
    found = []
    for _ in range(TRIES):
        before_ns = time.monotonic_ns()
        ticks = read()
        after_ns = time.monotonic_ns()
        found.append((after_ns - before_ns, (before_ns + after_ns) // 2, ticks))
    _, middle_ns, ticks = min(found)
    return middle_ns, ticks
