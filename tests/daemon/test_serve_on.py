# SPDX-License-Identifier: GPL-2.0-or-later
"""`serve_on`: the queues of an armed NIC are where the policy lets them be, and go back."""

from __future__ import annotations

from pathlib import Path

from tests.bed import a_bed
from tests.daemons import EVERYTHING
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

ANYWHERE = f"{EVERYTHING}interfaces: [{{ match: {{ name: '*' }} }}]\n"
NOT_0 = ANYWHERE.replace("} }]", "}, serve_on: '!0' }]")


def cpus(lab: Lab) -> list[int | None]:
    return [queue.cpu for queue in lab.nic.queues()]


def test_queues_come_there_and_go_back(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", NOT_0) as bed:
        found, name = cpus(lab), lab.nic.name
        assert 0 in found
        bed.start()
        until(lambda: 0 not in cpus(lab), "no queue is on CPU 0", 30)
        assert "serve_on is !0" in str(bed.daemon.ctl("events", "--json").stdout)
        bed.daemon.config.write_text(ANYWHERE)
        assert bed.daemon.ctl("reload").returncode == 0
        until(lambda: cpus(lab) == found, "they are where they were found", 30)
        bed.daemon.config.write_text(NOT_0)
        assert bed.daemon.ctl("reload").returncode == 0
        until(lambda: 0 not in cpus(lab), "no queue is on CPU 0 again", 30)
        assert bed.daemon.ctl("restore", name).returncode == 0
        assert cpus(lab) == found


def test_what_another_program_moved_while_no_daemon_ran_stays(lab: Lab, tmp_path: Path) -> None:
    """Although the policy serves no queue there, and although it is armed anew."""
    with a_bed(lab, tmp_path, "bpf", NOT_0) as bed:
        bed.start()
        until(lambda: 0 not in cpus(lab), "no queue is on CPU 0", 30)
        name = lab.nic.name
        assert bed.daemon.ctl("disarm", name).returncode == 0
        bed.daemon.end()
        lab.nic.write_setting("queue-cpu:1", "0")
        bed.start()
        assert bed.daemon.ctl("arm", name).returncode == 0
        assert cpus(lab)[1] == 0
        assert bed.daemon.get("/v1/nics")["nics"][0]["manual"] == ["queue-cpu:1"]
