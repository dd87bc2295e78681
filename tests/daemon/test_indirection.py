# SPDX-License-Identifier: GPL-2.0-or-later
"""A NIC without filters is served by its indirection table: real queues, entries and traffic.

The lab's NIC says that it has none (`refusals.NO_FILTERS`); what is delivered where is counted by
bench/meter.py, which knows nothing of atfnd.
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
from tests.daemons import Row
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

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


@pytest.fixture
def bed(lab: Lab, tmp_path: Path, observer: str) -> Iterator[Bed]:
    with a_bed(lab, tmp_path, observer) as made:
        start(made)
        yield made


def start(bed: Bed) -> None:
    name = bed.lab.nic.name
    options = ("--nic", name, "--arm", name, "--observer", bed.observer)
    bed.daemon.start(*options, wrapped=NO_FILTERS)


def by_entry(bed: Bed, app: Application) -> Row:
    """Its row, once its entry points to a queue on its application's CPU."""
    return bed.row(
        app,
        lambda row: (
            row["state"] == "rss"
            and row["app_cpu"] == app.cpu
            and bed.cpu_of(row["target_queue"]) == app.cpu
        ),
        "is steered by its entry",
    )


def test_packets_follow_the_application_by_entries_alone(bed: Bed) -> None:
    before = rss_of(bed)
    apps = {kind: make(bed.apps) for kind, make in FLOWS.items()}
    for app in apps.values():
        for _ in range(2):
            row = by_entry(bed, app)
            delivered(bed.meter, app)
            app.migrate()
        assert row["filter"] is None
        by_entry(bed, app)
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

    bed.daemon.end()
    assert rss_of(bed) == after  # a stop keeps, as with rules
    done = bed.daemon.restore()
    assert (done.returncode, done.stderr) == (0, "")
    assert rss_of(bed) == before
    assert bed.daemon.restore().stdout == "nothing to restore\n"


def test_a_table_somebody_else_writes_is_his_until_resumed(bed: Bed) -> None:
    app = bed.apps.tcp()
    row = by_entry(bed, app)
    key, table = rss_of(bed).key, rss_of(bed).table
    theirs = Rss(key, (*reversed(table),))
    bed.lab.nic.set_rss(theirs)
    until(lambda: bed.daemon.events("manual"), "it is noticed", 60)
    bed.row(app, lambda row: row["state"] == "manual", "is left alone")
    app.migrate()
    bed.row(app, lambda row: row["app_cpu"] == app.cpu, "is seen to move")
    assert rss_of(bed) == theirs
    assert bed.daemon.get("/v1/nics")["nics"][0]["manual"] == ["rss"]

    assert bed.daemon.ctl("resume", row["nic"]).returncode == 0
    by_entry(bed, app)
    delivered(bed.meter, app)
    bed.daemon.end(signal.SIGKILL)
    assert bed.daemon.restore().returncode == 0
    assert rss_of(bed) == theirs  # what was there when it was taken back


def test_restore_leaves_what_somebody_else_wrote_since(bed: Bed) -> None:
    by_entry(bed, bed.apps.tcp())
    bed.daemon.end(signal.SIGKILL)
    theirs = Rss(rss_of(bed).key, (1,) * len(rss_of(bed).table))
    bed.lab.nic.set_rss(theirs)
    done = bed.daemon.restore()
    assert done.returncode == 0
    assert "rss left at" in done.stdout
    assert "another program set it" in done.stdout
    assert rss_of(bed) == theirs


def test_a_restart_knows_the_first_table(bed: Bed) -> None:
    first = rss_of(bed)
    by_entry(bed, app := bed.apps.tcp())
    bed.daemon.end(signal.SIGKILL)
    start(bed)
    for _ in range(2):
        app.migrate()
        by_entry(bed, app)
        delivered(bed.meter, app)
    bed.daemon.end()
    assert rss_of(bed) != first
    assert bed.daemon.restore().returncode == 0
    assert rss_of(bed) == first
