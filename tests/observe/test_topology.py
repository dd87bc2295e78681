# SPDX-License-Identifier: GPL-2.0-or-later
"""Topology from made-up sysfs trees and from this machine's."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import Cpu, Node, Topology
from atfnd.observe.machine.topology import topology


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / "devices/system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def cpu_files(index: int, *, core: int, package: int, smt: str, llc: str) -> dict[str, str]:
    cpu = f"cpu/cpu{index}"
    return {
        f"{cpu}/topology/physical_package_id": str(package),
        f"{cpu}/topology/core_id": str(core),
        f"{cpu}/topology/thread_siblings_list": smt,
        f"{cpu}/cache/index0/level": "1",
        f"{cpu}/cache/index0/type": "Data",
        f"{cpu}/cache/index0/shared_cpu_list": smt,
        f"{cpu}/cache/index1/level": "1",
        f"{cpu}/cache/index1/type": "Instruction",
        f"{cpu}/cache/index1/shared_cpu_list": smt,
        f"{cpu}/cache/index3/level": "3",
        f"{cpu}/cache/index3/type": "Unified",
        f"{cpu}/cache/index3/shared_cpu_list": llc,
    }


def test_two_packages_with_smt_and_nodes(tmp_path: Path) -> None:
    files = {"cpu/online": "0-3", "node/node0/cpulist": "0-1", "node/node1/cpulist": "2-3"}
    files |= {"cpu/cpufreq/boost": "1", "node/has_cpu": "0-1"}
    for index in range(4):
        half = index // 2
        span = f"{half * 2}-{half * 2 + 1}"
        files |= cpu_files(index, core=0, package=half, smt=span, llc=span)
    assert topology(write(tmp_path, files)) == Topology(
        (
            Cpu(0, True, 0, 0, 0, (0, 1), (0, 1)),
            Cpu(1, True, 0, 0, 0, (0, 1), (0, 1)),
            Cpu(2, True, 1, 1, 0, (2, 3), (2, 3)),
            Cpu(3, True, 1, 1, 0, (2, 3), (2, 3)),
        ),
        (Node(0, (0, 1), {}), Node(1, (2, 3), {})),
    )


def test_an_offline_cpu_shares_what_it_shared_before(tmp_path: Path) -> None:
    files = {"cpu/online": "0-1", "node/node0/cpulist": "0-1", "cpu/isolated": ""}
    for index in range(2):
        files |= cpu_files(index, core=0, package=0, smt="0-1", llc="0-1")
    before = topology(write(tmp_path, files))
    for folder in ("topology", "cache"):
        shutil.rmtree(tmp_path / "devices/system/cpu/cpu1" / folder)
    files = {"cpu/online": "0", "node/node0/cpulist": "0", "cpu/isolated": "1"}
    after = topology(write(tmp_path, files | cpu_files(0, core=0, package=0, smt="0", llc="0")))
    assert after.cpus[1] == Cpu(1, False, None, None, None, (), (), isolated=True)
    known = topology(tmp_path, before).cpus
    assert known[1] == replace(before.cpus[1], online=False, isolated=True)
    assert known[0].smt == (0,)


def test_nodes_and_how_far_they_are_apart(tmp_path: Path) -> None:
    files = {"cpu/online": "0-1"}
    for node, row in ((0, "10 21 31"), (2, "21 10 41"), (4, "31 41 10")):
        files |= {f"node/node{node}/cpulist": str(node), f"node/node{node}/distance": row}
    assert topology(write(tmp_path, files)).nodes == (
        Node(0, (0,), {0: 10, 2: 21, 4: 31}),
        Node(2, (2,), {0: 21, 2: 10, 4: 41}),
        Node(4, (4,), {0: 31, 2: 41, 4: 10}),
    )


@pytest.mark.parametrize("mount", ["", "unified/"])
def test_isolated_and_tickless_cpus(tmp_path: Path, mount: str) -> None:
    files = {"cpu/online": "0-3", "cpu/isolated": "1", "cpu/nohz_full": "(null)"}
    files |= {f"cpu/cpu{index}/online": "1" for index in range(4)}
    files |= {f"../../fs/cgroup/{mount}cpuset.cpus.isolated": "3"}
    cpus = topology(write(tmp_path, files)).cpus
    assert [cpu.index for cpu in cpus if cpu.isolated] == [1, 3]
    assert not any(cpu.nohz_full for cpu in cpus)
    write(tmp_path, {"cpu/nohz_full": "2-3"})
    cpus = topology(tmp_path).cpus
    assert [cpu.index for cpu in cpus if cpu.nohz_full] == [2, 3]
    assert [cpu.index for cpu in cpus if cpu.isolated] == [1, 2, 3]


def test_what_the_kernel_does_not_know_is_none(tmp_path: Path) -> None:
    files = {"cpu/online": "0"} | cpu_files(0, core=-1, package=-1, smt="0", llc="0")
    (cpu,) = topology(write(tmp_path, files)).cpus
    assert (cpu.package, cpu.core) == (None, None)
    shutil.rmtree(tmp_path / "devices/system/cpu/cpu0/cache/index3")
    assert topology(tmp_path).cpus[0].llc == (0,)
    shutil.rmtree(tmp_path / "devices/system/cpu/cpu0/cache")
    assert topology(tmp_path).cpus[0].llc == ()
    assert topology(tmp_path / "nowhere") == Topology(())


def test_cpus_come_in_number_order(tmp_path: Path) -> None:
    files = {"cpu/online": "0-11"} | {f"cpu/cpu{i}/topology/core_id": str(i) for i in range(12)}
    assert [cpu.index for cpu in topology(write(tmp_path, files)).cpus] == list(range(12))
