# SPDX-License-Identifier: GPL-2.0-or-later
"""An interface that changes under a running daemon: down and up, its queues moved, gone, back."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest
from pyroute2 import IPRoute

from atfnd.kernel.system.netns import in_netns
from atfnd.lab.down import down
from atfnd.lab.up import up
from atfnd.nic.lab.device import HOST_LINK
from atfnd.nic.lab.nic import LabNic
from tests.applications import CPUS, delivered
from tests.bed import Bed, a_bed
from tests.labs import Lab, a_lab
from tests.wait import until


def set_link(lab: Lab, state: str) -> None:
    def change() -> None:
        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname=HOST_LINK)[0], state=state)

    in_netns(lab.netns["host"], change)


def shown_up(bed: Bed) -> bool:
    (nic,) = bed.daemon.get("/v1/nics")["nics"]
    return bool(nic["up"])


def test_down_and_up(shared_lab: Lab, tmp_path: Path, observer: str) -> None:
    """NAPI ids and threads are new ones, on no CPU: they are found and put back where they were."""
    with a_bed(shared_lab, tmp_path, observer) as bed:
        bed.start()
        apps = bed.apps.tcp(), bed.apps.udp()
        for app in apps:
            bed.steered(app)
        before = shared_lab.nic.queues()
        kept = {app.key: bed.rule(app) for app in apps}
        set_link(shared_lab, "down")
        until(lambda: not shown_up(bed), "the daemon sees the link go down")
        set_link(shared_lab, "up")
        until(
            lambda: [q.cpu for q in shared_lab.nic.queues()] == [q.cpu for q in before],
            "every queue is on its CPU again",
        )
        until(lambda: shown_up(bed), "the daemon sees the link come up")
        after = shared_lab.nic.queues()
        assert not {q.napi_id for q in after} & {q.napi_id for q in before}
        assert not {q.pid for q in after} & {q.pid for q in before}
        assert {app.key: (rule := bed.rule(app)) and rule.location for app in apps} == {
            key: rule and rule.location for key, rule in kept.items()
        }
        for app in apps:
            delivered(bed.meter, app)
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
        late = bed.apps.tcp()
        bed.steered(late)
        delivered(bed.meter, late)
        assert {row["what"].split(",")[0] for row in bed.daemon.events("link")} == {
            "is down",
            "is up",
        }


@pytest.mark.parametrize("freed", [False, True], ids=["moved", "freed"])
def test_flows_leave_a_queue_that_somebody_moves(lab: Lab, tmp_path: Path, freed: bool) -> None:
    with a_bed(lab, tmp_path, "bpf") as bed:
        bed.start()
        app = bed.apps.tcp()
        row = bed.steered(app)
        pid = lab.nic.queues()[row["target_queue"]].pid
        assert pid is not None
        cpus = set(CPUS) if freed else set(CPUS) - {app.cpu}
        os.sched_setaffinity(pid, cpus)
        bed.row(
            app,
            lambda now: (
                now["target_queue"] != row["target_queue"]
                and bed.cpu_of(now["target_queue"]) == app.cpu
            ),
            "is on another queue of the same CPU",
        )
        delivered(bed.meter, app)
        assert os.sched_getaffinity(pid) == cpus  # it is theirs


def test_a_lab_that_is_torn_down_and_comes_back_is_steered_again(
    tmp_path: Path, observer: str
) -> None:
    """Under its name, with other namespaces and another interface: as it was asked for."""
    with a_lab() as lab, a_bed(lab, tmp_path, observer) as bed:
        bed.start()
        bed.steered(bed.apps.tcp())
        down(lab.name)
        (event,) = until(lambda: bed.daemon.events("gone"), "the daemon says that the NIC is gone")
        assert (event["nic"], event["why"]) == (lab.nic.name, "the interface is gone")
        assert bed.daemon.get("/v1/nics")["nics"] == []
        assert bed.daemon.flows() == []
        assert bed.daemon.status()["armed"] == []
        done = bed.daemon.ctl("arm", lab.nic.name)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            2,
            f"atfnd: no such interface: {lab.nic.name}",
        )
        bed.apps.close()
        up(lab.name, 4)
        until(lambda: bed.daemon.status()["armed"] == [lab.nic.name], "it is armed again")
        with (
            closing(Lab(lab.name, LabNic(lab.name))) as again,
            a_bed(again, tmp_path, observer) as later,
        ):
            later.daemon = bed.daemon
            app = later.apps.tcp()
            for _ in range(2):
                later.steered(app)
                delivered(later.meter, app)
                app.migrate()
            (attached,) = bed.daemon.events("attach")
            assert (attached["nic"], attached["why"]) == (lab.nic.name, "the interface appeared")
            assert bed.daemon.end() == 0
            assert "Traceback" not in bed.daemon.said()
