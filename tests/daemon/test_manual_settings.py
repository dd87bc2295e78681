# SPDX-License-Identifier: GPL-2.0-or-later
"""What another program moved stays until `atfnctl resume`: while we run, do not run, and after.

The lab's NIC has no filters here (tests.cli.refusals.NO_FILTERS), so that its table is ours.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Rss
from tests.applications import delivered
from tests.bed import Bed, a_bed
from tests.cli.refusals import NO_FILTERS
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf") as made:
        start(made)
        yield made


def start(bed: Bed) -> None:
    name = bed.lab.nic.name
    bed.daemon.start("--nic", name, "--arm", name, "--observer", "bpf", wrapped=NO_FILTERS)


def move_as_an_admin(bed: Bed) -> Rss:
    """As `ethtool -X` does."""
    rss = bed.lab.nic.rss()
    assert rss is not None
    theirs = Rss(rss.key, (*reversed(rss.table),))
    bed.lab.nic.set_rss(theirs)
    return theirs


def manual(bed: Bed) -> list[str]:
    names: list[str] = bed.daemon.get("/v1/nics")["nics"][0]["manual"]
    return names


def test_it_is_left_alone_whatever_else_is_said_until_resume(bed: Bed) -> None:
    name, app = bed.lab.nic.name, bed.apps.tcp()
    bed.by_entry(app)
    theirs = move_as_an_admin(bed)
    until(lambda: manual(bed) == ["rss"], "it is noticed", 60)
    for verb in ("arm", "disarm", "arm"):
        assert bed.daemon.ctl(verb, name).returncode == 0
        assert manual(bed) == ["rss"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        bed.daemon.end(number)
        start(bed)
        assert manual(bed) == ["rss"]
    app.migrate()
    bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
    assert bed.lab.nic.rss() == theirs
    said = {each["what"]: each for each in bed.daemon.get(f"/v1/doctor?nic={name}")["findings"]}
    finding = said["another program changed rss after atfnd, which now leaves that alone"]
    assert finding["level"] == "warning"
    verb, nic = finding["advice"].rpartition("atfnctl ")[2].split()

    assert (verb, nic) == ("resume", name)
    assert bed.daemon.ctl(verb, nic).stdout == f"{name} is resumed\n"
    bed.by_entry(app)
    delivered(bed.meter, app)
    assert manual(bed) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_moved_while_no_daemon_runs_is_his_too(bed: Bed, number: signal.Signals) -> None:
    bed.by_entry(bed.apps.tcp())
    bed.daemon.end(number)
    theirs = move_as_an_admin(bed)
    start(bed)
    assert manual(bed) == ["rss"]
    (event,) = bed.daemon.events("manual")
    assert "until `atfnctl resume" in event["why"]
    assert bed.lab.nic.rss() == theirs


def test_what_is_moved_while_disarmed_is_his_too(bed: Bed) -> None:
    name = bed.lab.nic.name
    bed.by_entry(bed.apps.tcp())
    assert bed.daemon.ctl("disarm", name).returncode == 0
    theirs = move_as_an_admin(bed)
    assert bed.daemon.ctl("arm", name).returncode == 0
    assert manual(bed) == ["rss"]
    assert bed.lab.nic.rss() == theirs
