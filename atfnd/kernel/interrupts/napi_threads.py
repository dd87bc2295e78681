# SPDX-License-Identifier: GPL-2.0-or-later
"""Which thread polls each NAPI instance of a device, where netlink says little about it.

Reads /sys/class/net/*/threaded, all that a kernel before 6.17 says of use: a thread outlives it.
Before 6.8 (27f91aaf49b3) threads themselves are found by their names in /proc/PID/stat (proc(5)):
`napi/NAME-ID`, with the name the device had then (napi_kthread_create(), net/core/dev.c). Before
5.17 (d6986ce24fc0) names were cut to 15 bytes: a name of that length is not trusted. psutil does
not say which processes are kernel threads.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import Napi
from atfnd.kernel.system.procfs import read, stat_fields

__all__ = ["PF_KTHREAD", "napi_threads", "polled"]

PF_KTHREAD = 0x00200000  # include/linux/sched.h
CUT_BYTES = 15  # TASK_COMM_LEN - 1


def polled(interface: Interface, napis: list[Napi] | None) -> list[Napi]:
    """Its NAPIs as `NetdevFamily.napis` listed them, each with the pid of its thread only if that
    thread polls it now. Without a list (None), the NAPIs that have a thread."""
    if napis is None or any(napi.threaded is None for napi in napis):
        threaded = interface.read("threaded") == "1"
        if napis is None:
            found = napi_threads(interface.name()) if threaded else {}
            return [Napi(i, interface.ifindex, None, found[i], True) for i in sorted(found)]
        napis = [
            napi._replace(threaded=threaded) if napi.threaded is None else napi for napi in napis
        ]
    return [napi if napi.threaded else napi._replace(pid=None) for napi in napis]


def napi_threads(interface: str, proc: Path = Path("/proc")) -> dict[int, int]:
    """Threads by NAPI id, of every interface of this name in any namespace."""
    named = re.compile(rf"napi/{re.escape(interface)}-(\d+)")
    found: dict[int, int] = {}
    for pid in filter(str.isdigit, os.listdir(proc)):
        try:
            comm, fields = stat_fields(read(f"{proc}/{pid}/stat"))
        except (FileNotFoundError, ProcessLookupError):
            continue
        match = named.fullmatch(comm)
        if match and len(comm) != CUT_BYTES and int(fields[6]) & PF_KTHREAD:
            found[int(match[1])] = int(pid)
    return found
