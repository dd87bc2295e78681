# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl doctor` of a running daemon on the lab, and of a lab it does not watch."""

from __future__ import annotations

import json
from pathlib import Path

from tests.bed import a_bed
from tests.daemons import standing
from tests.labs import Lab, a_lab
from tests.serve.asking import atfnctl


def test_a_lab_that_is_watched_and_one_that_is_not(shared_lab: Lab, tmp_path: Path) -> None:
    name = shared_lab.nic.name
    with a_bed(shared_lab, tmp_path, "bpf") as bed, a_lab() as other:
        bed.start()
        answer = json.loads(bed.daemon.ctl("doctor", name, "--json").stdout)
        assert [nic["nic"] for nic in answer["nics"]] == [name]
        assert {finding["nic"] for finding in answer["findings"]} == {name, None}
        whats = [finding["what"] for finding in answer["findings"]]
        assert whats[:2] == [
            "steers each flow by a filter of its own",
            "moving a flow is one write (K1)",
        ]
        assert "RSS spreads over 4 queues; its table of 128 can be written" in whats
        crowded = [f for f in answer["findings"] if f["level"] in ("warning", "blocker")]
        assert answer["clear"] is (not crowded)

        before = standing(other)
        theirs = json.loads(bed.daemon.ctl("doctor", other.nic.name, "--json").stdout)
        assert [nic["nic"] for nic in theirs["nics"]] == [other.nic.name]
        assert "atfnd does not watch it" in [f["what"] for f in theirs["findings"]]
        assert standing(other) == before
        assert [nic["nic"] for nic in bed.daemon.get("/v1/nics")["nics"]] == [name]

        every = bed.daemon.get("/v1/doctor")
        machine = [f for f in every["findings"] if f["nic"] is None]
        assert machine[0]["what"].startswith("sockets are observed by BPF")
        assert atfnctl(bed.daemon.socket, "doctor", "lo").returncode == 2
        assert atfnctl(bed.daemon.socket, "doctor", "no-such-nic").returncode == 2
