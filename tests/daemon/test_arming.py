# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator allows: nothing until armed, nothing once disarmed, and what a policy leaves."""

from __future__ import annotations

from pathlib import Path

from tests.applications import delivered
from tests.bed import a_bed
from tests.daemons import policy, standing
from tests.labs import Lab

__all__: list[str] = []

LEAVE = """\
  - name: mine
    match: { ports: 5300-5310 }
    placement: leave
"""


def test_an_unarmed_nic_is_shown_and_not_touched(
    shared_lab: Lab, tmp_path: Path, observer: str
) -> None:
    with a_bed(shared_lab, tmp_path, observer) as bed:
        before = standing(shared_lab)
        bed.start(arm=False)
        apps = bed.apps.tcp(), bed.apps.udp_connected()
        for app in apps:
            row = bed.row(app, lambda row: row["state"] == "observed", "is observed")
            assert (row["app_cpu"], row["filter"]) == (app.cpu, None)
            assert bed.cpu_of(row["target_queue"]) == app.cpu
        assert standing(shared_lab) == before
        assert bed.daemon.status()["actions_applied"] == 0

        name = shared_lab.nic.name
        assert bed.daemon.ctl("arm", name).stdout == f"{name} is armed\n"
        for app in apps:
            bed.steered(app)
            delivered(bed.meter, app)

        assert bed.daemon.ctl("disarm", name).stdout == f"{name} is disarmed\n"
        frozen = standing(shared_lab)
        for app in apps:
            app.migrate()
            bed.row(app, lambda row, app=app: row["app_cpu"] == app.cpu, "is seen to move")  # type: ignore[misc]
        late = bed.apps.tcp()
        bed.row(late, lambda row: row["state"] == "observed", "is observed")
        apps[0].end()
        assert standing(shared_lab) == frozen
        assert bed.daemon.status()["armed"] == []

        assert bed.daemon.ctl("arm", name).returncode == 0
        for app in (apps[1], late):
            bed.steered(app)
        bed.unknown(apps[0])


def test_what_a_policy_leaves_is_left(shared_lab: Lab, tmp_path: Path, observer: str) -> None:
    with a_bed(shared_lab, tmp_path, observer, policy(LEAVE)) as bed:
        bed.start()
        left = [bed.apps.tcp(port=22), bed.apps.tcp(port=5305)]  # ssh is left by the built-in rule
        for app in left:
            app.migrate()
        bed.steered(bed.apps.tcp())  # seen after them
        for app, rule in zip(left, ("control", "mine"), strict=True):
            assert (bed.daemon.flow(app.key), bed.rule(app)) == (None, None)
            answer = bed.daemon.ctl("explain", str(app.key))
            assert answer.returncode == 0
            assert f"policy `{rule}` (" in answer.stdout


def test_an_idle_entry_ages_out_and_comes_back(
    shared_lab: Lab, tmp_path: Path, observer: str
) -> None:
    with a_bed(shared_lab, tmp_path, observer, policy(t_delete="1s")) as bed:
        bed.start()
        idle = [bed.apps.tcp(), bed.apps.udp_connected()]
        busy = [bed.apps.tcp(), bed.apps.udp_connected()]
        for app in (*idle, *busy):
            bed.steered(app)
        for app in idle:
            app.pause()
        bed.unknown(*idle)
        for app in idle:
            app.resume()
        for app in idle:
            bed.steered(app)
            delivered(bed.meter, app)
        names = {str(app.key): app for app in (*idle, *busy)}
        ended = [row for row in bed.daemon.events("delete") if row["flow"] in names]
        assert {row["flow"] for row in ended} == {str(app.key) for app in idle}
        assert all(row["why"].startswith("idle for more than 1.0 s") for row in ended)


def test_a_flow_that_moved_is_held(shared_lab: Lab, tmp_path: Path, observer: str) -> None:
    config = policy(hold_down="3600s")
    with a_bed(shared_lab, tmp_path, observer, config) as bed:
        bed.start()
        app = bed.apps.tcp()
        row = bed.steered(app)
        app.migrate()
        held = bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
        assert (held["target_queue"], held["filter"]) == (row["target_queue"], row["filter"])
        other = bed.apps.tcp()
        bed.steered(other)  # and others are not
        assert bed.daemon.events("rewrite") == []


def test_a_held_flow_follows_at_last(shared_lab: Lab, tmp_path: Path, observer: str) -> None:
    slow = """\
  - name: slow
    match: { ports: 5400 }
    placement: { near: core }
    full_core: stay
    dwell: 3600s
    order: immediate
"""
    config = policy(slow, hold_down="1s")
    with a_bed(shared_lab, tmp_path, observer, config) as bed:
        bed.start()
        waits = bed.apps.tcp(port=5400)  # its turn comes in an hour, and must delay nobody's
        bed.row(waits, lambda row: row["state"] == "wanted", "waits for its dwell")
        app = bed.apps.tcp()
        bed.steered(app)
        app.migrate()
        bed.steered(app)
        delivered(bed.meter, app)
        moved = [
            row for row in bed.daemon.events("insert", "rewrite") if row["flow"] == str(app.key)
        ]
        assert [row["kind"] for row in moved] == ["insert", "rewrite"]
        assert bed.rule(waits) is None
