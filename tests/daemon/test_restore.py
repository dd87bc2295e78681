# SPDX-License-Identifier: GPL-2.0-or-later
"""Rules outlive the daemon: a restart takes over its own, no more and no less, and `restore` puts
all back as it was before us, by the daemon, without one, or at its stop. What others put into the
NIC, or changed there, is theirs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Filter, Match
from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import ATFND, EVERYTHING, standing
from tests.labs import HOST, Lab, packed

__all__: list[str] = []

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
