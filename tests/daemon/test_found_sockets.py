# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows without an entry: a daemon finds their sockets when somebody asks."""

from __future__ import annotations

import json
from pathlib import Path

from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import Row
from tests.labs import Lab
from tests.wait import until


def every(bed: Bed) -> list[Row]:
    rows: list[Row] = json.loads(bed.daemon.ctl("flows", "--all", "--json").stdout)
    return rows


def listed(bed: Bed, app: Application, state: str) -> Row:
    def row() -> Row | None:
        mine = [row for row in every(bed) if row["remote"].endswith(f":{app.key.remote_port}")]
        assert len(mine) < 2
        return next((row for row in mine if row["state"] == state), None)

    found = until(row, f"{app.key} is {state}", 30)
    assert found is not None
    return found


def test_a_flow_that_rss_delivers_right_needs_nothing(
    shared_lab: Lab, tmp_path: Path, observer: str
) -> None:
    with a_bed(shared_lab, tmp_path, observer) as bed:
        bed.start()
        right = bed.apps.tcp(listen="::", by_rss=True)
        row = listed(bed, right, "local")
        assert (row["app_cpu"], row["rx_cpu"], row["placed"]) == (right.cpu, right.cpu, True)
        (local, _, remote) = str(right.key).split()[1:]
        ends = [f"[::ffff:{end.replace(':', ']:')}" for end in (local, remote)]
        done = bed.daemon.ctl("explain", *ends)
        where = f"on CPU {right.cpu}, where its thread runs"
        assert f"=> Delivered by RSS {where}: nothing to do." in done.stdout
        assert done.returncode == 0
        if observer == "bpf":
            assert row["tid"] == right.pid
            assert f"it is used by thread {right.pid} " in done.stdout

        steered = bed.steered(bed.apps.tcp())
        assert [each["state"] for each in every(bed)].count("steered") == 1
        assert steered["state"] == "steered"
