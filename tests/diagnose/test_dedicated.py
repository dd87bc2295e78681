# SPDX-License-Identifier: GPL-2.0-or-later
"""Which applications are named on dedicated CPUs, and what keeps them off."""

from __future__ import annotations

import pytest

from atfnd.diagnose.dedicated import examine_dedicated
from atfnd.model import CpuUser, Level
from tests.diagnose.machines import topology

SSHD = CpuUser(10, "sshd", "ssh.service")
SHELL = CpuUser(20, "bash", None)


@pytest.mark.parametrize(
    ("users", "named", "advice"),
    [
        (
            [SSHD, SSHD._replace(pid=11), SHELL],
            "ssh.service, bash (pid 20)",
            "systemctl edit ssh.service: [Service] AllowedCPUs=2-7, and so for each unit; or boot "
            "with isolcpus=0-1",
        ),
        ([SHELL], "bash (pid 20)", "boot with isolcpus=0-1"),
        (
            [SHELL._replace(pid=pid) for pid in range(1, 8)],
            ", ".join(f"bash (pid {pid})" for pid in range(1, 6)) + " and 2 more",
            "boot with isolcpus=0-1",
        ),
    ],
)
def test_those_that_use_dedicated_cpus_are_named(
    users: list[CpuUser], named: str, advice: str
) -> None:
    [finding] = examine_dedicated(frozenset({0, 1}), users, topology())
    assert finding.level is Level.WARNING
    assert finding.what == f"CPUs 0-1 are dedicated, and applications use them: {named}"
    assert finding.advice == advice


def test_cpus_that_nobody_uses_and_a_machine_without_another_one() -> None:
    assert [*examine_dedicated(frozenset({0}), [], topology())] == []
    [finding] = examine_dedicated(frozenset(range(8)), [SHELL], topology())
    assert finding.advice == "dedicate fewer CPUs: no other one is online"
