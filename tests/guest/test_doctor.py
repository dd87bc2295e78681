# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl doctor` on a NIC with a filter table: what it says is what ethtool(8) and /proc say.

simnic on node 1 of two, with 16 slots and as many queues as there are CPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bed import Bed, a_bed
from tests.guest.simlab import NAME, a_simlab, ethtool, sh

SLOTS = 16


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    parameters = {"queues": 4, "table": SLOTS, "node": 1, "ntuple_on": 0}
    with a_simlab(**parameters) as lab, a_bed(lab, tmp_path_factory.mktemp("d"), "bpf") as made:
        made.daemon.start("--nic", NAME, "--observer", "bpf")
        yield made
        made.daemon.end()


def findings(bed: Bed) -> dict[str, Any]:
    """By what they say."""
    return {each["what"]: each for each in bed.daemon.get(f"/v1/doctor?nic={NAME}")["findings"]}


def place(bed: Bed, queue: int, cpus: str) -> None:
    """As an admin does it."""
    irq = bed.lab.nic.queues()[queue].irq
    Path(f"/proc/irq/{irq}/smp_affinity_list").write_text(cpus)


def test_queues_are_where_proc_says(bed: Bed) -> None:
    for queue in range(4):
        place(bed, queue, str(queue))
    said = findings(bed)
    assert "4 queues are delivered on CPUs 0-3" in said
    assert any(what.startswith("it is on NUMA node 1, queues 0-1 are on another") for what in said)
    (row,) = [r for r in bed.daemon.get("/v1/topology")["nodes"] if r["node"] == 1]
    assert row == {"node": 1, "cpus": [2, 3], "distances": {"0": 21, "1": 10}, "nics": [NAME]}
    place(bed, 3, "2")
    said = findings(bed)
    assert said["queues 2-3 are sharing CPUs, while CPUs 3 have no queue"]["level"] == "warning"
    place(bed, 3, "0-3")
    assert any(what.startswith("queue 3 is ") and "CPU" in what for what in findings(bed))
    place(bed, 3, "3")
    assert "4 queues are delivered on CPUs 0-3" in findings(bed)


def test_a_gate_is_opened_by_what_it_advises(bed: Bed) -> None:
    """Armed, it is proven what it can do: with ntuple off, no filter."""
    assert any("is expected to do; it is proven when it is armed" in what for what in findings(bed))
    bed.daemon.order("arm", NAME)
    gates = [each for what, each in findings(bed).items() if "it takes no filters now" in what]
    assert [gate["level"] for gate in gates] == ["warning"], findings(bed)
    command, _, _ = gates[0]["advice"].partition(" (")
    assert command == f"ethtool -K {NAME} ntuple on"
    sh(*command.split())
    bed.daemon.order("arm", NAME)
    said = findings(bed)
    assert "steers each flow by a filter of its own" in said, said
    assert not any("proven when it is armed" in what for what in said)
    assert f"0 of {SLOTS} filter slots used, 0 by us, {SLOTS} free" in said


def test_filters_of_an_admin_fill_it(bed: Bed) -> None:
    for number in range(SLOTS - 1):
        sh("ethtool", "-N", NAME, "flow-type", "tcp4", "dst-port", 9000 + number, "action", 0,
           "loc", number)  # fmt: skip
    (full,) = [each for what, each in findings(bed).items() if "filter slots used" in what]
    assert full["level"] == "warning"
    assert full["advice"] == f"they are not ours: ethtool -n {NAME} lists them"
    done = bed.daemon.ctl("doctor", NAME)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].endswith(", 0 blockers")
    for number in range(SLOTS - 1):
        sh("ethtool", "-N", NAME, "delete", number)
    assert "Total 0 rules" in ethtool("-n", NAME)
