# SPDX-License-Identifier: GPL-2.0-or-later
"""Who else uses the CPUs that rules dedicate, and what would keep them off. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from atfnd.model import CpuUser, Finding, Level, Topology, cpu_list

__all__ = ["examine_dedicated"]

_MOST = 5


def examine_dedicated(
    dedicated: frozenset[int], users: Sequence[CpuUser], topology: Topology
) -> Iterator[Finding]:
    """`users` are the processes that use one of these CPUs."""
    if not users:
        return
    units = sorted({each.unit for each in users if each.unit is not None})
    names = [*units, *(f"{each.comm} (pid {each.pid})" for each in users if each.unit is None)]
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    ours = cpu_list(dedicated)
    what = f"CPUs {ours} are dedicated, and applications use them: {', '.join(names[:_MOST])}{more}"
    others = cpu_list({each.index for each in topology.cpus if each.online} - dedicated)
    if not others:
        advice = "dedicate fewer CPUs: no other one is online"
    elif units:
        edit = f"systemctl edit {units[0]}: [Service] AllowedCPUs={others}"
        advice = f"{edit}, and so for each unit; or boot with isolcpus={ours}"
    else:
        advice = f"boot with isolcpus={ours}"
    yield Finding(None, Level.WARNING, what, advice)
