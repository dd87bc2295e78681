# SPDX-License-Identifier: GPL-2.0-or-later
"""CPUs and what they share, from sysfs. Reads only.

Documentation/ABI: stable/sysfs-devices-system-cpu, testing/sysfs-devices-system-cpu
(cache/indexN), stable/sysfs-devices-node. Every file may be missing (an offline
CPU has no topology, a kernel without NUMA no nodes): that is `None` or an empty tuple.
"""

from __future__ import annotations

import re
from pathlib import Path

from atfnd.kernel.cpulist import parse_cpulist
from atfnd.model import Cpu, Topology

__all__ = ["topology"]


def topology(root: Path = Path("/sys")) -> Topology:
    """Every CPU the kernel has a directory for, by number. ValueError: sysfs speaks garbage."""
    system = root / "devices/system"
    online = _cpus(system / "cpu/online")
    nodes = {
        cpu: index
        for index, path in _numbered(system / "node", "node")
        for cpu in _cpus(path / "cpulist") or ()
    }
    return Topology(
        tuple(
            Cpu(
                index=index,
                online=online is None or index in online,
                node=nodes.get(index),
                package=_integer(path / "topology/physical_package_id"),
                core=_integer(path / "topology/core_id"),
                smt=_cpus(path / "topology/thread_siblings_list") or (),
                llc=_last_level(path / "cache"),
            )
            for index, path in _numbered(system / "cpu", "cpu")
        )
    )


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
    text = _text(path)
    return None if text is None else tuple(sorted(parse_cpulist(text)))
