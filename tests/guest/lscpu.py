# SPDX-License-Identifier: GPL-2.0-or-later
"""The machine's topology as util-linux tells it, in our own words: lscpu(1) --parse."""

from __future__ import annotations

import subprocess

from atfnd.model import Cpu, Topology

__all__ = ["lscpu"]


def lscpu() -> Topology:
    """--physical: the kernel's own numbers. CACHE is a column a level, the last one last.

    (--json is no JSON while a CPU is offline.)
    """
    argv = ["lscpu", "--all", "--physical", "--parse=CPU,ONLINE,NODE,SOCKET,CORE,CACHE"]
    said = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    rows = [line.split(",") for line in said.splitlines() if not line.startswith("#")]
    cpus = []
    for cpu, online, node, socket, core, *caches in rows:
        smt, llc = [], []
        for other, up, _, its_socket, its_core, *its_caches in rows:
            if online == up == "Y":
                smt += [int(other)] * ((its_socket, its_core) == (socket, core))
                llc += [int(other)] * (its_caches[-1] == caches[-1])
        cpus.append(
            Cpu(
                index=int(cpu),
                online=online == "Y",
                node=_number(node),
                package=_number(socket),
                core=_number(core),
                smt=tuple(smt),
                llc=tuple(llc),
            )
        )
    return Topology(tuple(cpus))


def _number(text: str) -> int | None:
    return int(text) if text else None
