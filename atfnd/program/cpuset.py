# SPDX-License-Identifier: GPL-2.0-or-later
"""The cpusets of cgroups, as settings that are written, undone and found to have drifted
(`setting`).

Kernels before 6.2 forget what threads pinned themselves to when their cpuset is written
(kernel/sched/core.c, __set_cpus_allowed_ptr(): user_cpus_ptr): what is lost is set again.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from atfnd.kernel.system.cpuset import effective, folder, read_cpus, threads, write_cpus
from atfnd.model import CgroupId

__all__ = ["CGROUPS", "Cpusets", "lost_pin"]

CGROUPS = "/cgroups"  # no interface can have this name

Cpus = frozenset[int]


class Cpusets:
    """cpuset.cpus of every cgroup, by `CgroupId.setting`."""

    name = CGROUPS

    def setting(self, name: str) -> str | None:
        """As the kernel has it now; None: the cgroup is gone, or has no cpuset."""
        there = folder(CgroupId.of(name))
        return None if there is None else read_cpus(there)

    def write_setting(self, name: str, value: str) -> None:
        """KeyError: the cgroup is gone. OSError: the kernel refused."""
        there = folder(CgroupId.of(name))
        if there is None:
            raise KeyError(name)
        had, pins = effective(there), _affinities(there)
        write_cpus(there, value)
        has = effective(there)
        for tid, now in _affinities(there).items():
            if tid in pins and (again := lost_pin(pins[tid], had, now, has)) is not None:
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(tid, again)

    def close(self) -> None:
        """Nothing is open."""


def _affinities(there: Path) -> dict[int, Cpus]:
    found = {}
    for tid in threads(there):
        with suppress(ProcessLookupError):
            found[tid] = frozenset(os.sched_getaffinity(tid))
    return found


def lost_pin(was: Cpus, had: Cpus, now: Cpus, has: Cpus) -> Cpus | None:
    """The CPUs to pin a thread to again. Its affinity `was` narrower than the cpuset it `had`, and
    is `now` all that it `has`; None: nothing was lost, or nothing of it is left."""
    own = was & has
    return own if not had <= was and has <= now and own and own != has else None
