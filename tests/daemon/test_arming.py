# SPDX-License-Identifier: GPL-2.0-or-later
"""What an operator allows: nothing until armed, nothing once disarmed or paused, also for the next
daemon; and what a policy leaves."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Match
from tests.applications import delivered
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS, policy, standing
from tests.labs import Lab
from tests.values import key

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


def test_a_pause_takes_all_of_ours_out_and_its_end_brings_it_back(
    shared_lab: Lab, tmp_path: Path
) -> None:
    """What is not ours stays; while paused nothing is written."""
    name = shared_lab.nic.name
    foreign = shared_lab.nic.insert(Match.of(key(7)), 0)
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        apps = bed.apps.tcp(), bed.apps.udp_connected()
        for app in apps:
            bed.steered(app)
        for _ in range(2):  # a second one changes nothing
            said = bed.daemon.ctl("pause", name).stdout
            assert said == f"{name} is paused: nothing of ours is in it\n"
            assert [rule.location for rule in shared_lab.nic.filters()] == [foreign]
        for app in apps:
            row = bed.row(app, lambda row: row["state"] == "observed", "is only observed")
            assert row["filter"] is None
        explained = bed.daemon.ctl("explain", f"cookie:{row['cookie']}").stdout.splitlines()
        assert explained[-1] == f"do: atfnctl resume {name}"
        assert bed.daemon.ctl("resume", name).stdout == f"{name} is resumed\n"
        for app in apps:
            bed.steered(app)
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
        kinds = [event["kind"] for event in bed.daemon.events("pause", "resume")]
        assert kinds == ["pause", "resume"]

        assert bed.daemon.ctl("disarm", name).returncode == 0
        assert len(shared_lab.nic.filters()) == 3
        assert bed.daemon.ctl("pause", name).returncode == 0
        said = bed.daemon.ctl("resume", name).stdout
        assert said == f"{name} is resumed; it is not armed, as before\n"
        assert [rule.location for rule in shared_lab.nic.filters()] == [foreign]


def test_orders_outlive_the_daemon(shared_lab: Lab, tmp_path: Path) -> None:
    """Whatever --arm says, and without it."""
    name = shared_lab.nic.name
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        app = bed.apps.tcp()
        bed.steered(app)
        assert bed.daemon.ctl("disarm").stdout == "every interface is disarmed\n"
        frozen = standing(shared_lab)
        for number in (signal.SIGTERM, signal.SIGKILL):
            bed.daemon.end(number)
            bed.start()
            assert bed.daemon.status()["armed"] == []
            app.migrate()
            bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
            assert standing(shared_lab) == frozen
        assert bed.daemon.ctl("arm", name).returncode == 0
        bed.steered(app)
        bed.daemon.end()
        bed.start(arm=False)
        for _ in range(2):  # at last where RSS does not deliver it
            app.migrate()
            bed.steered(app)
        assert bed.daemon.ctl("pause", name).returncode == 0
        for number in (signal.SIGKILL, signal.SIGTERM):
            bed.daemon.end(number)
            bed.start()
            bed.row(app, lambda row: row["state"] == "observed", "is only observed")
            assert shared_lab.nic.filters() == []
        assert bed.daemon.ctl("resume", name).stdout == f"{name} is resumed\n"
        bed.steered(app)


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
