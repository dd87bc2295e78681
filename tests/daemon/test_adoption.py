# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules outlive the daemon: a restart takes over its own, no more and no less; `restore` deletes
them. What others put into the NIC, or changed there, is theirs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from atfnd.model import Filter, Match
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import standing
from tests.labs import HOST, Lab, packed
from tests.wait import until

__all__: list[str] = []

FOREIGN = Match(4, 6, None, 0, packed(HOST[2]), 32, None, 8080)


def rules(lab: Lab) -> list[Filter]:
    return [rule._replace(hits=None) for rule in lab.nic.filters()]


def test_after_a_kill_the_restart_takes_its_rules_over(
    shared_lab: Lab, tmp_path: Path, observer: str
) -> None:
    with a_bed(shared_lab, tmp_path, observer) as bed:
        foreign = shared_lab.nic.insert(FOREIGN, 0)
        bed.start()
        stays, moves, ends = bed.apps.tcp(), bed.apps.udp_connected(), bed.apps.tcp()
        port = bed.apps.udp()
        for app in (stays, moves, ends, port):
            bed.steered(app)
        before = {app.key: bed.rule(app) for app in (stays, moves, port)}
        assert bed.daemon.end(signal.SIGKILL) == -signal.SIGKILL
        ends.end()
        moves.migrate()
        assert len(rules(shared_lab)) == 5

        bed.start()
        for app in (stays, moves, port):
            bed.steered(app)
            delivered(bed.meter, app)
        bed.unknown(ends)
        after = {app.key: bed.rule(app) for app in (stays, moves, port)}
        assert {key: rule and rule.location for key, rule in after.items()} == {
            key: rule and rule.location for key, rule in before.items()
        }
        assert len(rules(shared_lab)) == 4  # no duplicates, no leak
        (event,) = bed.daemon.events("adopt")
        assert event["what"] == "3 filters taken over, 1 orphans deleted"
        ours = {row["location"] for row in bed.daemon.get(_rules_of(bed))["filters"] if row["ours"]}
        assert foreign not in ours
        assert len(ours) == 3

        for app in (stays, moves, port):  # adopted flows end as any other
            app.end()
        bed.unknown(stays, moves, port)
        assert [rule.location for rule in rules(shared_lab)] == [foreign]


def _rules_of(bed: Bed) -> str:
    return f"/v1/filters?nic={bed.lab.nic.name}"


def test_a_restart_that_is_not_armed_deletes_orphans_once_it_is(
    shared_lab: Lab, tmp_path: Path
) -> None:
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        lives, ends = bed.apps.tcp(), bed.apps.tcp()
        for app in (lives, ends):
            bed.steered(app)
        bed.daemon.end(signal.SIGKILL)
        ends.end()
        before = standing(shared_lab)
        bed.start(arm=False)
        bed.steered(lives)
        assert standing(shared_lab) == before
        bed.daemon.order("arm", shared_lab.nic.name)
        alone = [Match.of(lives.key)]
        until(lambda: [r.match for r in rules(shared_lab)] == alone, "the orphan is deleted")


def test_a_clean_stop_keeps_the_rules_and_restore_deletes_ours(
    shared_lab: Lab, tmp_path: Path
) -> None:
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        foreign = shared_lab.nic.insert(FOREIGN, 0)
        apps = [bed.apps.tcp() for _ in range(3)]
        for app in apps:
            bed.steered(app)
        before = rules(shared_lab)
        assert bed.daemon.end() == 0
        assert rules(shared_lab) == before
        done = bed.daemon.restore()
        name = shared_lab.nic.name
        assert (done.returncode, done.stdout) == (0, f"{name}: 3 filters deleted\n"), done.stderr
        assert [rule.location for rule in rules(shared_lab)] == [foreign]
        assert bed.daemon.restore().stdout == "nothing to restore\n"


def deleted(lab: Lab, rule: Filter) -> None:
    lab.nic.delete(rule.location)


def redirected(lab: Lab, rule: Filter) -> None:
    assert rule.match is not None
    assert rule.queue is not None
    lab.nic.insert(rule.match, (rule.queue + 1) % 4, rule.location)


def replaced(lab: Lab, rule: Filter) -> None:
    lab.nic.insert(FOREIGN, 0, rule.location)


@pytest.mark.parametrize("change", [deleted, redirected, replaced])
def test_a_filter_that_somebody_changed_is_left_alone(
    shared_lab: Lab, tmp_path: Path, change: Callable[[Lab, Filter], None]
) -> None:
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        app, other = bed.apps.tcp(), bed.apps.tcp()
        for each in (app, other):
            bed.steered(each)
        rule = bed.rule(app)
        assert rule is not None
        began_s = bed.daemon.status()["uptime_s"]  # a rule may be lost in its first second
        until(lambda: bed.daemon.status()["uptime_s"] > began_s + 2, "the rule is settled")
        change(shared_lab, rule)
        row = bed.row(app, lambda row: row["state"] == "manual", "is left alone")
        assert row["why"].startswith("another program ")
        (event,) = bed.daemon.events("manual")
        assert event["flow"] == str(app.key)
        changed = [each for each in rules(shared_lab) if each.match != Match.of(other.key)]

        def theirs() -> list[Filter]:
            return [each for each in rules(shared_lab) if each.match != Match.of(other.key)]

        for _ in range(2):
            app.migrate()
            bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
            other.migrate()
            bed.steered(other)
        assert theirs() == changed
        _left_alone_over_a_restart(bed, app, other)
        assert theirs() == changed


def _left_alone_over_a_restart(bed: Bed, app: Application, other: Application) -> None:
    """`restore` and the next daemon know that this rule is not ours any more."""
    app.end()
    bed.unknown_to_table(app)
    bed.daemon.end(signal.SIGKILL)
    assert bed.daemon.restore().stdout == f"{bed.lab.nic.name}: 1 filters deleted\n"
    assert bed.rule(other) is None


def test_a_foreign_rule_is_never_touched(shared_lab: Lab, tmp_path: Path) -> None:
    """One for the very flow, too: it was there first."""
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start(arm=False)
        app = bed.apps.tcp()
        bed.row(app, lambda row: row["state"] == "observed", "is observed")
        wrong = next(q.index for q in shared_lab.nic.queues() if q.cpu != app.cpu)
        location = shared_lab.nic.insert(Match.of(app.key), wrong)
        bed.daemon.order("arm", shared_lab.nic.name)
        row = bed.row(app, lambda row: row["state"] == "wanted", "is left to that filter")
        assert "another program has a filter" in row["why"]
        app.end()
        bed.unknown_to_table(app)
        assert bed.daemon.end() == 0
        assert bed.daemon.restore().stdout == "nothing to restore\n"
        assert rules(shared_lab) == [Filter(location, Match.of(app.key), wrong)]
