# SPDX-License-Identifier: GPL-2.0-or-later
"""A policy that places no flow at its birth costs nobody anything at a connect: our program of the
root cgroup goes with the last of what was placed so, and comes back with the policy."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from atfnd.model import FlowKey
from tests.applications import Application, delivered
from tests.bed import a_bed
from tests.daemons import policy
from tests.labs import Lab
from tests.wait import until

BPF_CGROUP_SOCK_OPS = 3  # linux/bpf.h


def attached(pid: int) -> bool:
    """A process has a sockops program attached (kernel/bpf/cgroup.c, show_fdinfo)."""
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if f"attach_type:\t{BPF_CGROUP_SOCK_OPS}\n" in each.read_text():
                return True
    return False


def port_of(server: Application) -> FlowKey:
    """Every connection to it."""
    return server.key._replace(remote=socket.inet_aton("0.0.0.0"), remote_port=0)


def test_births_are_observed_only_for_a_policy_that_wants_them(lab: Lab, tmp_path: Path) -> None:
    strict = policy(order="strict")
    with a_bed(lab, tmp_path, "bpf", strict) as bed:

        def use(config: str) -> None:
            bed.daemon.config.write_text(config)
            bed.daemon.post("/v1/reload")

        def has_its_rule(server: Application) -> bool:
            row = bed.daemon.flow(port_of(server))
            return row is not None and row["filter"] is not None

        bed.start()
        assert bed.daemon.process is not None
        pid, server = bed.daemon.process.pid, bed.apps.serves()
        assert attached(pid)
        until(lambda: has_its_rule(server), "the port has a rule")
        use(policy(order="immediate"))
        until(lambda: not attached(pid), "births are observed no more")
        assert not any(rule.match and rule.match.src is None for rule in lab.nic.filters())
        assert bed.daemon.flow(port_of(server)) is None
        app = bed.apps.joins(server)
        bed.steered(app)
        delivered(bed.meter, app)
        use(strict)
        assert attached(pid)
        later = bed.apps.serves()
        until(lambda: has_its_rule(later), "a port has a rule again")
        assert "Traceback" not in bed.daemon.said()
