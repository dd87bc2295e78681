# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules outlive the daemon: a restart takes over its own, no more and no less, and `restore` puts
all back as it was before us, by the daemon, without one, or at its stop. What others put into the
NIC, or changed there, is theirs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atfnd.model import Filter, Match
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import ATFND, EVERYTHING, standing
from tests.labs import HOST, Lab, packed
from tests.wait import until

FOREIGN = Match(4, 6, None, 0, packed(HOST[2]), 32, None, 8080)
ON_STOP = EVERYTHING.replace("daemon: {", "daemon: { on_stop: restore,")
# A NIC that refuses to delete; the rest of it is real.
_NO_DELETE = """
import errno, sys
from atfnd.cli.commands import main
from atfnd.nic.lab.nic import LabNic
def refuse(self, location):
    raise OSError(errno.EBUSY, "busy")
LabNic.delete = refuse
sys.argv[0] = sys.argv.pop(1)
main()
"""
NO_DELETE = (sys.executable, "-c", _NO_DELETE)


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf") as made:
        yield made


def rules(lab: Lab) -> list[Filter]:
    return [rule._replace(hits=None) for rule in lab.nic.filters()]


def matches(lab: Lab) -> list[Match | None]:
    return [rule.match for rule in lab.nic.filters()]


def all_steered(bed: Bed, *apps: Application) -> None:
    for app in apps:
        bed.steered(app)


def test_after_a_kill_the_restart_takes_its_rules_over(
    lab: Lab, tmp_path: Path, observer: str
) -> None:
    with a_bed(lab, tmp_path, observer) as bed:
        foreign = lab.nic.insert(FOREIGN, 0)
        bed.start()
        stays, moves, ends = bed.apps.tcp(), bed.apps.udp_connected(), bed.apps.tcp()
        port = bed.apps.udp()
        all_steered(bed, stays, moves, ends, port)
        before = {app.key: bed.rule(app) for app in (stays, moves, port)}
        assert bed.daemon.end(signal.SIGKILL) == -signal.SIGKILL
        ends.end()
        moves.migrate()
        assert len(rules(lab)) == 5

        bed.start()
        for app in (stays, moves, port):
            bed.steered(app)
            delivered(bed.meter, app)
        bed.unknown(ends)
        after = {app.key: bed.rule(app) for app in (stays, moves, port)}
        assert {key: rule and rule.location for key, rule in after.items()} == {
            key: rule and rule.location for key, rule in before.items()
        }
        assert len(rules(lab)) == 4  # no duplicates, no leak
        (event,) = bed.daemon.events("adopt")
        assert event["what"] == "3 filters taken over, 1 orphans deleted"
        shown = bed.daemon.get(f"/v1/filters?nic={lab.nic.name}")["filters"]
        ours = {row["location"] for row in shown if row["ours"]}
        assert foreign not in ours
        assert len(ours) == 3

        for app in (stays, moves, port):  # adopted flows end as any other
            app.end()
        bed.unknown(stays, moves, port)
        assert [rule.location for rule in rules(lab)] == [foreign]


def test_a_restart_that_is_not_armed_deletes_orphans_once_it_is_or_restores(
    bed: Bed, lab: Lab
) -> None:
    bed.start()
    lives, ends, later = bed.apps.tcp(), bed.apps.tcp(), bed.apps.tcp()
    all_steered(bed, lives, ends, later)
    bed.daemon.end(signal.SIGKILL)
    ends.end()
    before = standing(lab)
    bed.start(arm=False)
    all_steered(bed, lives, later)
    assert standing(lab) == before
    bed.daemon.order("arm", lab.nic.name)
    until(lambda: {*matches(lab)} == {Match.of(lives.key), Match.of(later.key)}, "it is deleted")
    bed.daemon.end(signal.SIGKILL)
    later.end()
    bed.start(arm=False)
    assert len(rules(lab)) == 2
    assert bed.daemon.ctl("restore", lab.nic.name).returncode == 0
    assert rules(lab) == []
    bed.daemon.end()
    assert bed.daemon.restore().stdout == "nothing to restore\n"


def test_a_running_daemon_puts_all_back_and_disarms(bed: Bed, lab: Lab) -> None:
    name, before = lab.nic.name, standing(lab)
    foreign = lab.nic.insert(FOREIGN, 0)
    bed.start()
    apps = [bed.apps.tcp(), bed.apps.udp_connected()]
    all_steered(bed, *apps)
    done = bed.daemon.ctl("restore", name)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"{name}: 2 filters deleted"
    assert done.stdout.splitlines()[-1] == f"{name} is disarmed: nothing of ours is in it"
    assert [rule.location for rule in rules(lab)] == [foreign]
    late = bed.apps.tcp()
    bed.row(late, lambda row: row["state"] == "observed", "is observed")
    assert [rule.location for rule in rules(lab)] == [foreign]
    (answer,) = json.loads(bed.daemon.ctl("restore", "--json").stdout)  # again, and every one
    assert (answer["armed"], answer["restored"], answer["clear"]) == (False, [], True)
    assert bed.daemon.ctl("arm", name).returncode == 0
    all_steered(bed, *apps, late)
    kept = rules(lab)
    assert bed.daemon.end() == 0
    assert rules(lab) == kept  # a stop keeps
    done = bed.daemon.restore()
    assert (done.returncode, done.stdout) == (0, f"{name}: 3 filters deleted\n"), done.stderr
    lab.nic.delete(foreign)
    assert standing(lab) == before


def deleted(lab: Lab, rule: Filter) -> None:
    lab.nic.delete(rule.location)


def redirected(lab: Lab, rule: Filter) -> None:
    assert rule.match is not None
    assert rule.queue is not None
    lab.nic.insert(rule.match, (rule.queue + 2) % 4, rule.location)


def replaced(lab: Lab, rule: Filter) -> None:
    lab.nic.insert(FOREIGN, 0, rule.location)


@pytest.mark.parametrize("change", [deleted, redirected, replaced])
def test_a_filter_that_somebody_changed_is_left_alone(
    bed: Bed, lab: Lab, change: Callable[[Lab, Filter], None]
) -> None:
    bed.start()
    app, other = bed.apps.tcp(), bed.apps.tcp()
    all_steered(bed, app, other)
    rule = bed.rule(app)
    assert rule is not None
    began_s = bed.daemon.status()["uptime_s"]  # a rule may be lost in its first second
    until(lambda: bed.daemon.status()["uptime_s"] > began_s + 2, "the rule is settled")
    change(lab, rule)
    row = bed.row(app, lambda row: row["state"] == "manual", "is left alone")
    assert row["why"].startswith("another program ")
    (event,) = bed.daemon.events("manual")
    assert event["flow"] == str(app.key)

    def theirs() -> list[Filter]:
        return [each for each in rules(lab) if each.match != Match.of(other.key)]

    changed = theirs()
    for _ in range(2):
        app.migrate()
        bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
        other.migrate()
        bed.steered(other)
    assert theirs() == changed
    app.end()  # `restore` and the next daemon know that this rule is not ours any more
    bed.unknown_to_table(app)
    bed.daemon.end(signal.SIGKILL)
    assert bed.daemon.restore().stdout == f"{lab.nic.name}: 1 filters deleted\n"
    assert rules(lab) == changed


@pytest.mark.parametrize("running", [True, False])
def test_a_restore_leaves_what_somebody_has_just_changed(bed: Bed, lab: Lab, running: bool) -> None:
    bed.start()
    all_steered(bed, bed.apps.tcp(), bed.apps.udp_connected())
    if not running:
        bed.daemon.end(signal.SIGKILL)
    rule = lab.nic.filters()[0]
    redirected(lab, rule)
    done = bed.daemon.ctl("restore", lab.nic.name) if running else bed.daemon.restore()
    said = "filters 1 gone, or changed by another program since"
    assert (done.returncode, running or said in done.stdout) == (0, True)
    assert [each.location for each in rules(lab)] == [rule.location]


def test_a_foreign_rule_is_never_touched(bed: Bed, lab: Lab) -> None:
    """One for the very flow, too: it was there first."""
    bed.start(arm=False)
    app = bed.apps.tcp()
    bed.row(app, lambda row: row["state"] == "observed", "is observed")
    wrong = next(q.index for q in lab.nic.queues() if q.cpu != app.cpu)
    location = lab.nic.insert(Match.of(app.key), wrong)
    bed.daemon.order("arm", lab.nic.name)
    row = bed.row(app, lambda row: row["state"] == "wanted", "is left to that filter")
    assert "another program has a filter" in row["why"]
    app.end()
    bed.unknown_to_table(app)
    assert bed.daemon.end() == 0
    assert bed.daemon.restore().stdout == "nothing to restore\n"
    assert rules(lab) == [Filter(location, Match.of(app.key), wrong)]


def test_a_stop_restores_where_the_policy_says_so(bed: Bed, lab: Lab) -> None:
    """A crash does not: traffic flows on as it was. A reload just before the stop counts."""
    before = standing(lab)
    bed.start()
    all_steered(bed, bed.apps.tcp(), bed.apps.udp_connected())
    bed.daemon.config.write_text(ON_STOP)
    assert bed.daemon.process is not None
    bed.daemon.process.send_signal(signal.SIGHUP)
    assert bed.daemon.end() == 0, bed.daemon.said()
    assert standing(lab) == before
    bed.start()
    assert bed.daemon.status()["armed"] == [lab.nic.name]  # a stop is no order
    bed.steered(bed.apps.tcp())
    assert bed.daemon.end(signal.SIGKILL) == -signal.SIGKILL
    assert standing(lab) != before
    bed.start()
    assert bed.daemon.end() == 0
    assert standing(lab) == before


def test_what_cannot_be_restored_is_reported_and_tried_again(bed: Bed, lab: Lab) -> None:
    name, why = lab.nic.name, "is left: the kernel refused to delete it (Device or resource busy)"
    bed.daemon.config.write_text(ON_STOP)
    bed.daemon.start("--nic", name, "--arm", name, wrapped=NO_DELETE)
    app = bed.apps.tcp()
    bed.steered(app)
    assert bed.daemon.end() == 1
    assert "not restored" in bed.daemon.said()
    assert "Device or resource busy" in bed.daemon.said()
    rule = bed.rule(app)
    assert rule is not None
    done = subprocess.run(
        [*NO_DELETE, ATFND, "restore", "--run-dir", str(bed.daemon.run_dir)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"filter {rule.location} {why}" in done.stdout
    assert why in done.stderr
    assert bed.daemon.restore().returncode == 0
    assert lab.nic.filters() == []
