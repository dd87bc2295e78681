# SPDX-License-Identifier: GPL-2.0-or-later
"""What takes packets out of the rings of a NIC's queues, as a policy asks for it: real NAPIs of the
lab NIC, which the kernel is asked about."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model.reception import DEFER, OF_NAPI, SUSPEND, TIMEOUT
from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemon.test_link import set_link
from tests.daemons import ATFND, EVERYTHING, policy
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

DEFERRED = "reception: {deferred: {timeout: 200us, polls: 10}}"
OF_INTERFACE = f"{EVERYTHING}interfaces: [{{ match: {{ name: '*' }}, {DEFERRED} }}]\n"
OFF, ON = {TIMEOUT: "0", DEFER: "0", SUSPEND: "0"}, {TIMEOUT: "200000", DEFER: "10", SUSPEND: "0"}


def of_queues(lab: Lab) -> list[dict[str, str]]:
    """What the kernel says of each queue."""
    settings = lab.nic.settings()
    queues = range(len(lab.nic.queues()))
    return [{kind: settings[f"{kind}:{queue}"] for kind in OF_NAPI} for queue in queues]


def everywhere(lab: Lab, wanted: dict[str, str]) -> None:
    until(lambda: all(each == wanted for each in of_queues(lab)), f"all are {wanted}", 30)


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf", OF_INTERFACE) as made:
        yield made


def flows_on(bed: Bed, app: Application) -> bool:
    """Its packets are delivered, on whichever CPU."""

    def segments() -> int:
        found = bed.meter.read().flows.get(app.key)
        return 0 if found is None else found.local_segments + found.remote_segments

    before = segments()
    return until(lambda: segments() > before + 100, f"{app.key} flows")


def restored(bed: Bed) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ATFND, "restore", "--run-dir", str(bed.daemon.run_dir)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_an_interface_is_received_as_its_policy_asks_and_as_before_afterwards(
    bed: Bed, lab: Lab
) -> None:
    bed.start()
    everywhere(lab, ON)
    row = bed.daemon.get("/v1/queues")["queues"][0]
    assert row["reception"]["mode"] == row["reception_wanted"]["mode"] == "deferred"
    assert row["reception_why_not"] is None
    assert "deferred 200us x 10" in bed.daemon.ctl("queues").stdout
    assert bed.daemon.ctl("restore", lab.nic.name).returncode == 0
    everywhere(lab, OFF)


def test_traffic_flows_when_the_daemon_is_killed_and_restore_puts_all_back(
    bed: Bed, lab: Lab
) -> None:
    bed.start()
    app = bed.apps.tcp()
    everywhere(lab, ON)
    bed.daemon.end(signal.SIGKILL)
    assert flows_on(bed, app)
    assert of_queues(lab)[0] == ON
    done = restored(bed)
    assert done.returncode == 0, done.stderr
    everywhere(lab, OFF)


def test_the_values_come_back_with_the_link(bed: Bed, lab: Lab) -> None:
    bed.start()
    everywhere(lab, ON)
    before = [queue.napi_id for queue in lab.nic.queues()]
    for state in ("down", "up"):
        set_link(lab, state)
    until(lambda: before != [queue.napi_id for queue in lab.nic.queues()], "its NAPIs are new ones")
    everywhere(lab, ON)


def test_a_value_of_another_program_stays(bed: Bed, lab: Lab) -> None:
    bed.start()
    everywhere(lab, ON)
    name = f"{TIMEOUT}:1"
    lab.nic.write_setting(name, "5000")
    until(lambda: name in bed.daemon.get("/v1/nics")["nics"][0]["manual"], "it is noticed", 60)
    assert bed.daemon.ctl("restore", lab.nic.name).returncode == 0
    assert of_queues(lab)[1] == OFF | {TIMEOUT: "5000"}
    assert of_queues(lab)[0] == OFF


def test_a_rule_has_its_mode_on_the_queue_of_its_owner_only(lab: Lab, tmp_path: Path) -> None:
    config = policy(order=f"strict\n    {DEFERRED}")
    with a_bed(lab, tmp_path, "bpf", config) as bed:
        bed.start()
        app = bed.apps.udp_connected()
        queue = bed.steered(app)["target_queue"]
        until(lambda: of_queues(lab)[queue] == ON, f"queue {queue} of its owner is deferred")
        others = [each for index, each in enumerate(of_queues(lab)) if index != queue]
        assert others == [OFF] * 3
        row = bed.daemon.get("/v1/queues")["queues"][queue]
        assert row["reception_wanted"]["policy"] == "everything"
        said = bed.daemon.ctl("explain", str(app.key)).stdout
        assert "a timer that polls while there is traffic (deferred interrupts)" in said
        bed.apps.close()
        everywhere(lab, OFF)


def test_another_policy_takes_the_mode_away(bed: Bed, lab: Lab) -> None:
    bed.start()
    everywhere(lab, ON)
    bed.daemon.config.write_text(OF_INTERFACE.replace(DEFERRED, "reception: interrupt"))
    assert bed.daemon.ctl("reload").returncode == 0
    everywhere(lab, OFF)


def test_a_mode_that_cannot_be_had_is_refused_with_the_reason(bed: Bed, lab: Lab) -> None:
    bed.daemon.config.write_text(OF_INTERFACE.replace(DEFERRED, "reception: busy"))
    bed.start()
    rows = until(
        lambda: [
            row
            for row in bed.daemon.get("/v1/queues")["queues"]
            if row["reception_why_not"] is not None
        ],
        "it says why",
    )
    assert rows is not None
    assert rows[0]["reception_why_not"] == "busy: its NAPI cannot have a thread"
    assert "is not received as the policy asks: busy" in bed.daemon.ctl("doctor").stdout
