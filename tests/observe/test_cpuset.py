# SPDX-License-Identifier: GPL-2.0-or-later
"""The cpuset of a thread, from made-up trees of both cgroup versions and from this machine's."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from atfnd.observe.processes.cpuset import cpuset_of

__all__: list[str] = []


def tree(root: Path, name: str, files: dict[str, str]) -> Path:
    """A machine whose thread 7 is in the cpuset `name`."""
    for path, text in ({"proc/7/cpuset": name} | files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text + "\n")
    return root


def test_version_2_and_a_cgroup_without_the_controller(tmp_path: Path) -> None:
    top = "sys/fs/cgroup"
    files = {
        f"{top}/cpuset.cpus.effective": "0-7",
        f"{top}/web/cpuset.cpus.effective": "2-3,6",
        f"{top}/web/worker/cgroup.procs": "7",
    }
    assert cpuset_of(7, tree(tmp_path, "/web/worker", files)) == frozenset({2, 3, 6})


def test_version_1(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpuset/web/cpuset.effective_cpus": "1"}
    assert cpuset_of(7, tree(tmp_path, "/web", files)) == frozenset({1})


def test_a_cgroup_name_does_not_lead_out_of_the_tree(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/x": "", "cpuset.cpus.effective": "5"}
    assert cpuset_of(7, tree(tmp_path, "/../../..", files)) is None


def test_a_kernel_without_cpusets_and_a_thread_that_is_gone(tmp_path: Path) -> None:
    assert cpuset_of(7, tmp_path) is None
    assert cpuset_of(7, tree(tmp_path, "/web", {})) is None


def test_our_own_has_every_cpu_that_we_may_run_on() -> None:
    """Where there are cpusets at all: one of their root files is mounted."""
    mounted = [*Path("/sys/fs/cgroup").glob("cpuset*"), *Path("/sys/fs/cgroup").glob("*/cpuset.*")]
    mine = cpuset_of(threading.get_native_id())
    if mine is None:
        assert not [file for file in mounted if file.is_file() and "cpus" in file.name]
    else:
        assert os.sched_getaffinity(0) <= mine <= set(range(os.cpu_count() or 1))
