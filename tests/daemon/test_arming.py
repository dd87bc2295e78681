# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator allows: nothing until armed, nothing once disarmed; and what a policy leaves.
`test_operator` has every order, and the next run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import delivered
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS, policy, standing
from tests.labs import Lab

__all__: list[str] = []

RULES = policy(
    """\
  - name: mine
    match: { ports: 5300-5310 }
    placement: leave
""",
    t_delete="1s",
)
SLOW = """\
  - name: slow
    match: { ports: 5400 }
    placement: { near: core }
    full_core: stay
    dwell: 3600s
    order: immediate
"""


def test_a_held_flow_follows_at_last(shared_lab: Lab, tmp_path: Path) -> None:
    with a_bed(shared_lab, tmp_path, "bpf", policy(SLOW, hold_down="1s")) as bed:
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


# From here on one daemon of each observer serves all.


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    """Not armed, unless a test did."""
    with a_bed(shared_lab, tmp_path_factory.mktemp("daemon"), request.param, RULES) as made:
        made.start(arm=False)
        yield made


def test_an_unarmed_nic_is_shown_and_not_touched(bed: Bed, shared_lab: Lab) -> None:
    name, before = shared_lab.nic.name, standing(shared_lab)
    apps = bed.apps.tcp(), bed.apps.udp_connected()
    for app in apps:
        row = bed.row(app, lambda row: row["state"] == "observed", "is observed")
        assert (row["app_cpu"], row["filter"]) == (app.cpu, None)
        assert bed.cpu_of(row["target_queue"]) == app.cpu
    assert standing(shared_lab) == before
    assert bed.daemon.status()["actions_applied"] == 0

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

    bed.daemon.order("disarm", name)
    bed.daemon.order("pause", name)
    assert shared_lab.nic.filters() == []
    said = bed.daemon.ctl("resume", name).stdout
    assert said == f"{name} is resumed; it is not armed, as before\n"


def test_what_a_policy_leaves_is_left(bed: Bed) -> None:
    bed.daemon.order("arm", bed.lab.nic.name)
    left = [bed.apps.tcp(port=22), bed.apps.tcp(port=5305)]  # ssh is left by the built-in rule
    for app in left:
        app.migrate()
    bed.steered(bed.apps.tcp())  # seen after them
    for app, rule in zip(left, ("control", "mine"), strict=True):
        assert (bed.daemon.flow(app.key), bed.rule(app)) == (None, None)
        answer = bed.daemon.ctl("explain", str(app.key))
        assert answer.returncode == 0
        assert f"policy `{rule}` (" in answer.stdout


def test_an_idle_entry_ages_out_and_comes_back(bed: Bed) -> None:
    bed.daemon.order("arm", bed.lab.nic.name)
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
