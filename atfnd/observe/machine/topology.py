# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs and what they share, from sysfs. Reads only.

Documentation/ABI: stable/sysfs-devices-system-cpu, testing/sysfs-devices-system-cpu
(cache/indexN), stable/sysfs-devices-node; isolated CPUs are those of isolcpus=, of nohz_full= (no
tick is asked for, so no packets of others are) and of isolated cpusets
(Documentation/admin-guide/cgroup-v2.rst, cpuset.cpus.isolated). Every file may be missing
(an offline CPU has no topology, a kernel without NUMA no nodes): that is `None` or an empty tuple.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from atfnd.kernel.netlink.uevent import cpu_changes
from atfnd.kernel.system.cpulist import parse_cpulist
from atfnd.model import Cpu, Node, Topology

__all__ = ["CpuWatch", "topology"]


class CpuWatch:
    """CPUs over time: remembers what an offline one shared with which others."""

    def __init__(self) -> None:
        self._changes = cpu_changes()
        self._last = topology()

    def fileno(self) -> int:
        """Readable when a CPU went offline or online."""
        return self._changes.fileno()

    def changed(self) -> bool:
        """Drain what there is to read: some CPU may have changed."""
        return self._changes.drain() != set()

    def known(self) -> Topology:
        """CPUs as last read: they are read again after a reported change."""
        return self._last

    def read(self) -> Topology:
        """CPUs as sysfs describes them now."""
        self._last = topology(before=self._last)
        return self._last

    def close(self) -> None:
        self._changes.close()


def topology(root: Path = Path("/sys"), before: Topology | None = None) -> Topology:
    """Every CPU the kernel has a directory for, by number. What sysfs no longer says of an offline
    CPU (node, core, siblings, cache) is taken from `before`. ValueError: sysfs holds garbage."""
    system = root / "devices/system"
    online = _cpus(system / "cpu/online")
    nodes = _nodes(system / "node")
    node_of = {cpu: node.index for node in nodes for cpu in node.cpus}
    nohz_full = _cpus(system / "cpu/nohz_full") or ()
    isolated = {*(_cpus(system / "cpu/isolated") or ()), *nohz_full}
    isolated |= set(_isolated_cpusets(root / "fs/cgroup"))
    known = {cpu.index: cpu for cpu in before.cpus} if before else {}
    cpus = []
    for index, path in _numbered(system / "cpu", "cpu"):
        cpu = Cpu(
            index=index,
            online=online is None or index in online,
            node=node_of.get(index),
            package=_integer(path / "topology/physical_package_id"),
            core=_integer(path / "topology/core_id"),
            smt=_cpus(path / "topology/thread_siblings_list") or (),
            llc=_last_level(path / "cache"),
            isolated=index in isolated,
            nohz_full=index in nohz_full,
        )
        if not cpu.online and index in known:
            cpu = replace(
                known[index], online=False, isolated=cpu.isolated, nohz_full=cpu.nohz_full
            )
        cpus.append(cpu)
    return Topology(tuple(cpus), nodes)


def _nodes(system: Path) -> tuple[Node, ...]:
    """`distance` is a row of the table, a column for each online node (drivers/base/node.c)."""
    found = _numbered(system, "node")
    columns = [index for index, _ in found]
    return tuple(
        Node(
            index=index,
            cpus=_cpus(path / "cpulist") or (),
            distances=dict(
                zip(columns, map(int, (_text(path / "distance") or "").split()), strict=False)
            ),
        )
        for index, path in found
    )


def _isolated_cpusets(cgroup: Path) -> tuple[int, ...]:
    """Where cgroup2 is mounted: there, or in `unified` beside the controllers of version 1."""
    for mount in (cgroup, cgroup / "unified"):
        cpus = _cpus(mount / "cpuset.cpus.isolated")
        if cpus is not None:
            return cpus
    return ()


def _last_level(cache: Path) -> tuple[int, ...]:
    """CPUs sharing the highest-level data cache. An instruction cache never carries packets."""
    levels = [
        (_integer(path / "level") or 0, _cpus(path / "shared_cpu_list") or ())
        for _, path in _numbered(cache, "index")
        if _text(path / "type") != "Instruction"
    ]
    return max(levels, default=(0, ()))[1]


def _numbered(folder: Path, prefix: str) -> list[tuple[int, Path]]:
    """`cpu0`, `cpu10`, ... in number order; not `cpufreq`."""
    pattern = re.compile(prefix + r"(\d+)$")
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(m[1]), path) for path in paths if (m := pattern.match(path.name)))


def _text(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except FileNotFoundError:
        return None


def _integer(path: Path) -> int | None:
    """None when the kernel does not say: no file, or the -1 it writes for an unknown id."""
    text = _text(path)
    return None if text is None or int(text) < 0 else int(text)


def _cpus(path: Path) -> tuple[int, ...] | None:
    """`(null)` is what "%*pbl" prints for a mask that was never allocated."""
    text = _text(path)
    return None if text in (None, "(null)") else tuple(sorted(parse_cpulist(text)))
