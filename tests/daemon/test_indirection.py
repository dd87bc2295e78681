# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC without filters is served by its indirection table: real queues, entries and traffic. What
another program writes there stays until `atfnctl resume`.

The lab's NIC says that it has no filters (`refusals.NO_FILTERS`); what is delivered where is
counted by bench/meter.py, which knows nothing of atfnd.
"""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from atfnd.model import Rss
from atfnd.model.toeplitz import rss_entry
from tests.applications import Application, Applications, delivered
from tests.bed import Bed, a_bed
from tests.cli.refusals import NO_FILTERS
from tests.labs import Lab
from tests.wait import until

V4, V6 = socket.AF_INET, socket.AF_INET6
FLOWS: dict[str, Callable[[Applications], Application]] = {
    "tcp4": lambda apps: apps.tcp(V4),
    "tcp6": lambda apps: apps.tcp(V6),
    "udp4-connected": lambda apps: apps.udp_connected(V4),
}


def rss_of(bed: Bed) -> Rss:
    rss = bed.lab.nic.rss()
    assert rss is not None
    return rss


def start(bed: Bed) -> None:
    name = bed.lab.nic.name
    options = ("--nic", name, "--arm", name, "--observer", bed.observer)
    bed.daemon.start(*options, wrapped=NO_FILTERS)


@pytest.fixture
def bed(lab: Lab, tmp_path: Path) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, "bpf") as made:
        start(made)
        yield made


def moved_as_an_admin(bed: Bed) -> Rss:
    """As `ethtool -X` does."""
    theirs = Rss(rss_of(bed).key, (*reversed(rss_of(bed).table),))
    bed.lab.nic.set_rss(theirs)
    return theirs


def manual(bed: Bed) -> list[str]:
    names: list[str] = bed.daemon.get("/v1/nics")["nics"][0]["manual"]
    return names


def test_packets_follow_the_application_by_entries_alone(
    lab: Lab, tmp_path: Path, observer: str
) -> None:
    with a_bed(lab, tmp_path, observer) as bed:
        start(bed)
        before = rss_of(bed)
        apps = {kind: make(bed.apps) for kind, make in FLOWS.items()}
        for app in apps.values():
            for _ in range(2):
                row = bed.by_entry(app)
                delivered(bed.meter, app)
                app.migrate()
            assert row["filter"] is None
            bed.by_entry(app)
            delivered(bed.meter, app)
        assert bed.lab.nic.filters() == []
        after = rss_of(bed)
        pairs = enumerate(zip(before.table, after.table, strict=True))
        changed = {entry for entry, (old, new) in pairs if old != new}
        assert changed <= {rss_entry(before, app.key) for app in apps.values()}

        (nic,) = bed.daemon.get("/v1/nics")["nics"]
        assert nic["method"] == "rss"
        answer = bed.daemon.ctl("explain", str(app.key))
        assert answer.returncode == 0, answer.stderr
        for words in (nic["method_why"], f"entry {rss_entry(before, app.key)}", f"CPU {app.cpu}"):
            assert words in answer.stdout

        bed.daemon.end(signal.SIGKILL)
        start(bed)  # it knows the first table
        app.migrate()
        bed.by_entry(app)
        delivered(bed.meter, app)
        last = rss_of(bed)
        bed.daemon.end()
        assert rss_of(bed) == last != before  # a stop keeps, as with rules
        done = bed.daemon.restore()
        assert (done.returncode, done.stderr) == (0, "")
        assert rss_of(bed) == before
        assert bed.daemon.restore().stdout == "nothing to restore\n"


def test_a_table_that_somebody_else_writes_is_his_until_resume(bed: Bed) -> None:
    name, app = bed.lab.nic.name, bed.apps.tcp()
    bed.by_entry(app)
    theirs = moved_as_an_admin(bed)
    until(lambda: manual(bed) == ["rss"], "it is noticed", 60)
    bed.row(app, lambda row: row["state"] == "manual", "is left alone")
    for verb in ("arm", "disarm", "arm"):
        assert bed.daemon.ctl(verb, name).returncode == 0
        assert manual(bed) == ["rss"]
    for number in (signal.SIGTERM, signal.SIGKILL):
        bed.daemon.end(number)
        start(bed)
        assert manual(bed) == ["rss"]
    app.migrate()
    bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
    assert rss_of(bed) == theirs
    said = {each["what"]: each for each in bed.daemon.get(f"/v1/doctor?nic={name}")["findings"]}
    finding = said["another program changed rss after atfnd, which now leaves that alone"]
    assert finding["level"] == "warning"
    verb, nic = finding["advice"].rpartition("atfnctl ")[2].split()

    assert (verb, nic) == ("resume", name)
    assert bed.daemon.ctl(verb, nic).stdout == f"{name} is resumed\n"
    bed.by_entry(app)
    delivered(bed.meter, app)
    assert manual(bed) == []
    bed.daemon.end(signal.SIGKILL)
    assert bed.daemon.restore().returncode == 0
    assert rss_of(bed) == theirs  # what was there when it was taken back
