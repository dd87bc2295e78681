# SPDX-License-Identifier: GPL-2.0-or-later
"""A lab, a daemon that steers it, applications on it, and a meter of what is delivered where."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atfnd.kernel.system.netns import exists
from atfnd.model import Filter, Match
from atfnd.nic import Nic
from bench.meter import Meter
from tests.applications import Application, Applications
from tests.daemons import EVERYTHING, Daemon, Row
from tests.labs import Ends
from tests.wait import until

__all__ = ["Bed", "a_bed"]

SHOWN = 4000  # characters of what the daemon said last, and of its last events


@dataclass
class Bed:
    """Everything ends with `a_bed`."""

    lab: Ends[Nic]
    daemon: Daemon
    apps: Applications
    meter: Meter
    observer: str

    def start(self, *, arm: bool = True, observer: str | None = None) -> None:
        """Start the daemon (again) on our lab."""
        name = self.lab.nic.name
        armed = ("--arm", name) if arm else ()
        self.daemon.start("--nic", name, "--observer", observer or self.observer, *armed)

    def row(self, app: Application, when: Callable[[Row], object], what: str) -> Row:
        """The application's row of the table, once it is so."""

        def found() -> Row | None:
            row = self.daemon.flow(app.key)
            return row if row is not None and when(row) else None

        try:
            # Each look costs the daemon CPU time, which its moves then wait for.
            row = until(found, f"{app.key} {what}", 30, every_s=0.05)
        except AssertionError as late:
            raise AssertionError(f"{late}; {self._known_of(app)}") from late
        assert row is not None
        return row

    def _known_of(self, app: Application) -> str:
        """For the report of a failure: what the daemon shows and said, and whether it talks."""
        said = [event for event in self.daemon.events() if str(app.key.local_port) in str(event)]
        talks = [each.process.poll() is None for each in (app.peer, app.host)]
        status = self.daemon.status()
        return f"row {self.daemon.flow(app.key)}; talks {talks}; events {said[-8:]}; {status}"

    def steered(self, app: Application) -> Row:
        """Its row, once a rule leads it to its application's CPU."""
        return self.row(
            app,
            lambda row: (
                row["state"] == "steered"
                and row["app_cpu"] == app.cpu
                and self.cpu_of(row["target_queue"]) == app.cpu
            ),
            "is steered",
        )

    def by_entry(self, app: Application) -> Row:
        """Its row, once its entry of the indirection table leads it to its application's CPU. A
        migration is in the row before the entry is written."""
        return self.row(
            app,
            lambda row: (
                row["state"] == "rss"
                and row["app_cpu"] == app.cpu
                and self.cpu_of(row["target_queue"]) == app.cpu
            ),
            "has its entry",
        )

    def cpu_of(self, queue: int) -> int | None:
        return self.lab.nic.queues()[queue].cpu

    def rule(self, app: Application) -> Filter | None:
        """The filter in the NIC for exactly this flow."""
        match = Match.of(app.key)
        return next((rule for rule in self.lab.nic.filters() if rule.match == match), None)

    def unknown(self, *apps: Application) -> None:
        """Wait until neither the table nor the NIC knows these flows."""
        until(
            lambda: not any(self.daemon.flow(app.key) or self.rule(app) for app in apps),
            f"{[str(app.key) for app in apps]} are in neither table nor NIC",
            30,
        )

    def unknown_to_table(self, app: Application) -> None:
        until(lambda: not self.daemon.flow(app.key), f"{app.key} is not in the table", 30)


@contextmanager
def a_bed(lab: Ends[Nic], folder: Path, observer: str, config: str = EVERYTHING) -> Iterator[Bed]:
    """The daemon is not started yet; it is killed at the end if it still runs."""
    apps = Applications(lab)
    with Meter(lab.nic.ifindex, os.stat(lab.netns["host"]).st_ino) as meter:
        made = Bed(lab, Daemon(folder, config), apps, meter, observer)
        try:
            yield made
        except (AssertionError, OSError) as failed:
            failed.add_note(made.daemon.said()[-SHOWN:] + made.daemon.ctl("events").stdout[-SHOWN:])
            raise
        finally:
            made.daemon.reap()  # a test may have another one by now
            apps.close()
            if exists(lab.netns["host"]):
                _clear(lab.nic)


def _clear(nic: Nic) -> None:
    """Empty its filter table; a NIC that the test removed has none."""
    try:
        for rule in nic.filters():
            nic.delete(rule.location)
    except OSError as error:
        if error.errno != errno.ENODEV:
            raise
