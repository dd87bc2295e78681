# SPDX-License-Identifier: GPL-2.0-or-later
"""Who uses a CPU, among real processes."""

from __future__ import annotations

import os
import subprocess
import sys

from atfnd.observe.processes.cpuset import cpu_users
from tests.wait import until

FIRST, OTHER, *_ = sorted(os.sched_getaffinity(0))


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
