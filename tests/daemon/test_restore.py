# SPDX-License-Identifier: GPL-2.0-or-later
"""All as it was before us: by the daemon, without one, at its stop; and what is not ours stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Match
from tests.bed import Bed, a_bed
from tests.daemons import ATFND, EVERYTHING, standing
from tests.labs import Lab
from tests.values import key

__all__: list[str] = []

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


def restored(bed: Bed, *wrapped: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*wrapped, ATFND, "restore", "--run-dir", str(bed.daemon.run_dir)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def changed_as_an_admin(bed: Bed) -> int:
    """Another queue for the rule that stands first; its location."""
    rule = bed.lab.nic.filters()[0]
    assert rule.match is not None
    assert rule.queue is not None
    queues = len(bed.lab.nic.queues())
    taken = {rule.queue, (rule.queue + 1) % queues}
    third = next(queue for queue in range(queues) if queue not in taken)
    bed.lab.nic.insert(rule.match, third, rule.location)
    return rule.location


def test_a_running_daemon_puts_all_back_and_disarms(bed: Bed, lab: Lab) -> None:
    name, before = lab.nic.name, standing(lab)
    foreign = bed.lab.nic.insert(Match.of(key(7)), 0)
    bed.start()
    apps = [bed.apps.tcp(), bed.apps.udp_connected()]
    for app in apps:
        bed.steered(app)
    done = bed.daemon.ctl("restore", name)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == f"{name}: 2 filters deleted"
    assert done.stdout.splitlines()[-1] == f"{name} is disarmed: nothing of ours is in it"
    assert [rule.location for rule in bed.lab.nic.filters()] == [foreign]
    bed.lab.nic.delete(foreign)
    assert standing(lab) == before
    late = bed.apps.tcp()
    bed.row(late, lambda row: row["state"] == "observed", "is observed")
    assert standing(lab) == before
    (answer,) = json.loads(bed.daemon.ctl("restore", "--json").stdout)  # again, and every one
    assert (answer["armed"], answer["restored"], answer["clear"]) == (False, [], True)
    assert bed.daemon.ctl("arm", name).returncode == 0
    for app in apps:
        bed.steered(app)


def test_rules_of_an_earlier_run_go_too(bed: Bed) -> None:
    bed.start()
    app = bed.apps.tcp()
    bed.steered(app)
    bed.daemon.end(signal.SIGKILL)
    app.end()
    bed.start(arm=False)  # an orphan stays where nothing may be changed
    assert len(bed.lab.nic.filters()) == 1
    assert bed.daemon.ctl("restore", bed.lab.nic.name).returncode == 0
    assert bed.lab.nic.filters() == []
    bed.daemon.end()
    assert restored(bed).stdout == "nothing to restore\n"


@pytest.mark.parametrize("running", [True, False])
def test_a_rule_somebody_changed_since_is_his(bed: Bed, running: bool) -> None:
    bed.start()
    apps = [bed.apps.tcp(), bed.apps.udp_connected()]
    for app in apps:
        bed.steered(app)
    if not running:
        bed.daemon.end(signal.SIGKILL)
    location = changed_as_an_admin(bed)
    if running:
        done = bed.daemon.ctl("restore", bed.lab.nic.name)
    else:
        done = restored(bed)
        assert "filters 1 gone, or changed by another program since" in done.stdout
    assert done.returncode == 0
    assert [rule.location for rule in bed.lab.nic.filters()] == [location]


def test_what_cannot_be_restored_is_reported_and_tried_again(bed: Bed) -> None:
    bed.start()
    bed.steered(bed.apps.tcp())
    bed.daemon.end()
    (rule,) = bed.lab.nic.filters()
    done = restored(bed, *NO_DELETE)
    assert done.returncode == 1
    why = "is left: the kernel refused to delete it (Device or resource busy)"
    assert f"filter {rule.location} {why}" in done.stdout
    assert why in done.stderr
    assert restored(bed).returncode == 0
    assert bed.lab.nic.filters() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_stop_restores_where_the_policy_says_so(
    lab: Lab, tmp_path: Path, number: signal.Signals
) -> None:
    """A crash does not: traffic flows on as it was."""
    before = standing(lab)
    with a_bed(lab, tmp_path, "bpf", ON_STOP) as bed:
        bed.start()
        for app in (bed.apps.tcp(), bed.apps.udp_connected()):
            bed.steered(app)
        assert bed.daemon.end(number) == (0 if number is signal.SIGTERM else -number)
        assert (standing(lab) == before) is (number is signal.SIGTERM)
        bed.start()
        assert bed.daemon.status()["armed"] == [lab.nic.name]  # a stop is no order
        assert bed.daemon.end() == 0
        assert standing(lab) == before


def test_a_reload_that_was_asked_for_before_the_stop_counts(bed: Bed, lab: Lab) -> None:
    before = standing(lab)
    bed.start()
    bed.steered(bed.apps.tcp())
    bed.daemon.config.write_text(ON_STOP)
    assert bed.daemon.process is not None
    bed.daemon.process.send_signal(signal.SIGHUP)
    assert bed.daemon.end() == 0, bed.daemon.said()
    assert standing(lab) == before


def test_a_stop_that_cannot_restore_says_so(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", ON_STOP) as bed:
        name = lab.nic.name
        bed.daemon.start("--nic", name, "--arm", name, wrapped=NO_DELETE)
        bed.steered(bed.apps.tcp())
        assert bed.daemon.end() == 1
        assert "not restored" in bed.daemon.said()
        assert "Device or resource busy" in bed.daemon.said()
