# SPDX-License-Identifier: GPL-2.0-or-later
"""The commands of `atfnctl plan`, typed by hand, leave a NIC as the armed daemon does.

The state is what ethtool(8), /proc and sysfs say: filters by location, the affinity of each
interrupt, XPS, RPS and RFS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING, policy
from tests.guest.filters import listed
from tests.guest.settings import on_simnic, set_settings, set_up_arfs, settings
from tests.guest.simlab import NAME, a_simlab, ethtool, sh
from tests.wait import until

NEAR = EVERYTHING.replace("near: core", "near: llc, avoid: smt")
BEDS = [("explicit", EVERYTHING), ("any", EVERYTHING), ("explicit", NEAR)]


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    location, config = request.param
    with (
        a_simlab(queues=4, table=64, location=location) as lab,
        a_bed(lab, tmp_path_factory.mktemp("daemon"), "bpf", config) as made,
    ):
        yield made


def plan(bed: Bed) -> list[dict[str, object]]:
    actions: list[dict[str, object]] = bed.daemon.get("/v1/plan")["actions"]
    return actions


def typed(actions: list[dict[str, object]]) -> None:
    """As an admin would, in this order."""
    for action in actions:
        assert isinstance(action["commands"], list)
        for command in action["commands"]:
            sh("bash", "-c", command)


def inserts(bed: Bed) -> int:
    return sum(action["kind"] == "insert" for action in plan(bed))


def state(bed: Bed) -> tuple[list[list[str]], dict[str, str]]:
    """Filters, with their locations where those are ours to say, and settings."""
    filters = listed()
    said = [[str(at), *lines] for at, lines in sorted(filters.items())]
    if bed.lab.nic.caps().location_any:
        said = sorted(filters.values())
    return said, settings(bed)


def observed(bed: Bed, app: Application) -> None:
    bed.row(app, lambda row: row["state"] == "observed", "is observed")


@pytest.mark.parametrize(("queues", "rules"), [(4, 1), (1, 0)], ids=["one owner", "RFS"])
def test_settings_by_hand_are_as_by_the_daemon(tmp_path: Path, queues: int, rules: int) -> None:
    """Before the other tests: their beds have simnic for as long as the file takes."""
    with on_simnic(tmp_path, queues=queues, table=64, rules=rules) as bed:
        if rules:
            set_up_arfs()
        bed.start(arm=False)
        before = settings(bed)
        typed(plan(bed))
        by_commands = settings(bed)
        changed = {Path(each).name for each in before if by_commands[each] != before[each]}
        assert "rps_flow_cnt" in changed
        set_settings(before)
        assert settings(bed) == before
        bed.daemon.order("arm", NAME)
        until(lambda: settings(bed) == by_commands, "the daemon has made the same", 60)


@pytest.mark.parametrize("bed", BEDS, indirect=True, ids=["explicit", "any", "near"])
def test_by_hand_is_as_by_the_daemon(bed: Bed) -> None:
    bed.start(arm=False)
    near = "llc" in bed.daemon.config.read_text()
    apps = [bed.apps.tcp(by_rss=near) for _ in range(3)]  # RSS has none of them right
    for app in apps:
        observed(bed, app)
        app.pause()  # nothing new is observed between the plan and its end
    bare = state(bed)
    until(lambda: inserts(bed) == len(apps), "every flow is in the plan", 30)
    actions = plan(bed)
    assert state(bed) == bare  # to plan is to change nothing
    assert all(action["why"] and action["cannot"] is None for action in actions)
    typed(actions)
    by_commands = state(bed)
    assert len(by_commands[0]) == len(apps)
    cleared()
    set_settings(bare[1])
    assert state(bed) == bare
    bed.daemon.order("arm", NAME)
    until(lambda: state(bed) == by_commands, "the daemon has made the same", 60)
    assert inserts(bed) == 0
    for app in apps:
        app.end()
    bed.unknown(*apps)
    assert bed.daemon.end() == 0


def cleared() -> None:
    """No filter is left."""
    for location in listed():
        ethtool("-N", NAME, "delete", location)


@pytest.mark.parametrize("bed", BEDS[:2], indirect=True, ids=["explicit", "any"])
def test_a_rewrite_by_hand(bed: Bed) -> None:
    """What a disarmed daemon would do to a rule it left."""
    bed.start()
    app = bed.apps.tcp()
    bed.steered(app)
    bed.daemon.order("disarm", NAME)
    app.migrate()
    bed.row(app, lambda row: row["app_cpu"] == app.cpu, "has moved")
    (action,) = [each for each in plan(bed) if each["flow"] is not None]
    assert action["kind"] == "rewrite"
    typed([action])
    (lines,) = listed().values()
    assert lines[-1] == f"Action: Direct to queue {action['new']}"
    assert bed.cpu_of(int(str(action["new"]))) == app.cpu
    app.end()
    assert bed.daemon.end() == 0
    cleared()


@pytest.mark.parametrize("bed", BEDS[:2], indirect=True, ids=["explicit", "any"])
def test_a_delete_by_hand(bed: Bed) -> None:
    """Of a rule whose flow another policy leaves alone."""
    bed.start()
    bed.daemon.order("arm", NAME)  # the order before holds until the next boot
    app = bed.apps.tcp()
    bed.steered(app)
    bed.daemon.order("disarm", NAME)
    left = f"  - {{ name: left, match: {{ ports: {app.key.local_port} }}, placement: leave }}"
    bed.daemon.config.write_text(policy(left))
    assert bed.daemon.ctl("reload").returncode == 0
    (action,) = [each for each in plan(bed) if each["flow"] is not None]
    assert action["kind"] == "delete"
    typed([action])
    assert listed() == {}
    app.end()
    bed.daemon.config.write_text(EVERYTHING)
    assert bed.daemon.end() == 0
