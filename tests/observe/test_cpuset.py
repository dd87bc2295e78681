# SPDX-License-Identifier: GPL-2.0-or-later
"""The cpuset of a thread, from made-up trees of both cgroup versions and from this machine's; and
who uses a CPU, among real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from atfnd.observe.processes.cpuset import cpu_users, cpuset_of
from tests.wait import until

FIRST, OTHER, *_ = sorted(os.sched_getaffinity(0))


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


def test_a_process_uses_the_cpu_that_it_ran_on_last_if_it_still_may() -> None:
    asleep = "import sys; print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", asleep],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: os.sched_setaffinity(0, {FIRST}),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        def uses(cpu: int) -> bool:
            return process.pid in {each.pid for each in cpu_users({cpu})}

        until(lambda: uses(FIRST), "it ran there")
        assert not uses(OTHER)
        os.sched_setaffinity(process.pid, {OTHER})  # it sleeps on, and its last CPU stays
        assert not uses(FIRST)
        process.communicate()
        assert not uses(FIRST)


def test_threads_of_the_kernel_are_none() -> None:
    kernel = {each.pid for each in cpu_users(os.sched_getaffinity(0)) if each.comm == "kthreadd"}
    assert not kernel
    assert cpu_users(frozenset()) == ()
