# SPDX-License-Identifier: GPL-2.0-or-later
"""Faults by chance, one after the other, end as a fresh start does, and no application notices.

ATFND_FAULTS_S is for how many seconds, ATFND_FAULTS_SEED which chance; a failure shows the seed and
every fault.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import FlowKey, Match
from atfnd.nic.lab.device import HOST_LINK
from atfnd.program.journals.filter_journal import FilterJournal
from bench.meter import FlowCount
from tests.applications import CPUS, Application, delivered, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemon.failing import in_kernel, loaded, stopped
from tests.daemons import EVERYTHING, OBSERVERS, Daemon, policy
from tests.labs import Lab, a_lab
from tests.values import key
from tests.wait import until

SECONDS = float(os.environ.get("ATFND_FAULTS_S", "40"))
SEED = int(os.environ.get("ATFND_FAULTS_SEED", "6"))
SLOTS = 32
LEFT, ON_ITS_CORE = "left alone", "on its core"
POLICIES = (
    EVERYTHING,
    policy(order="strict", dwell="10ms"),
    policy(order="bounded"),
    policy(table=2, hold_down="100ms"),
    policy("  - { name: quiet, match: { ports: [1-65535] }, placement: leave }"),
    EVERYTHING.replace("[tcp, udp]", "[udp]"),
)
MOST_APPS = 6

pytestmark = pytest.mark.timeout(int(SECONDS) + 600)


class Faults:
    """Applications on a bed, and what happens to them and to the daemon that steers them.

    A fault leaves the machine in order (a link that went down is up again), but not what came of
    it: what the daemon released stays so, others' filters stay, and so does what the operator said.
    """

    def __init__(self, bed: Bed, chance: random.Random) -> None:
        self.bed, self.chance, self.nic = bed, chance, bed.lab.nic
        self.apps = [bed.apps.tcp(), bed.apps.udp_connected()]
        self.done: list[str] = []
        self._theirs: set[Match | None] = set()
        self._numbers = iter(range(1, 1 << 30))
        self._all = (
            *(self.killed, self.ended, self.frozen, self.reloaded, self.flapped, self.disk_full),
            *(self.migrated, self.migrated, self.came, self.went),
            *(self.rule_deleted, self.rule_inserted, self.nic_full, self.others_gone),
            *(self.paused, self.resumed, self.disarmed, self.armed),
        )

    def one(self) -> None:
        """Let one fault happen, and see that every application is served through it."""
        fault = self.chance.choice(self._all)
        self._happens(fault.__name__)
        fault()
        self.traffic()

    def start(self, observer: str) -> None:
        self._happens(f"start {observer}")
        self.bed.start(observer=observer)

    def _happens(self, what: str) -> None:
        self.done.append(what)
        print(what, end=", ", flush=True)

    def traffic(self) -> None:
        """Every application receives on, whatever it is delivered by."""
        wanted = self.chance.randrange(1, 60)
        for app in self.apps:
            until(self._received(app, wanted), f"{wanted} more segments of {app.key}", 60)

    def _received(self, app: Application, wanted: int) -> Callable[[], bool]:
        start = self.bed.meter.read()

        def enough() -> bool:
            assert app.host.process.poll() is app.peer.process.poll() is None, f"{app.key} broke"
            got = self.bed.meter.read().since(start).flows.get(app.key)
            return got is not None and got.local_segments + got.remote_segments >= wanted

        return enough

    # ---- the daemon

    def killed(self) -> None:
        """Also torn is what it was writing."""
        self._dies(signal.SIGKILL)

    def ended(self) -> None:
        self._dies(signal.SIGTERM)

    def _dies(self, number: signal.Signals) -> None:
        process = self.bed.daemon.process
        assert process is not None
        held = set(loaded(process.pid))
        self.bed.daemon.end(number)
        without = [self._torn, self._cut, self.migrated, self.went, self.flapped, self.rule_deleted]
        for meanwhile in self.chance.sample(without, self.chance.randrange(3)):
            self._happens(f"meanwhile {meanwhile.__name__}")
            meanwhile()
        self.traffic()
        until(lambda: not held & in_kernel(), "its BPF objects are freed")
        self.start(self.chance.choice(OBSERVERS))

    def frozen(self) -> None:
        """It stands still, and the world does not."""
        process = self.bed.daemon.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        try:
            until(partial(stopped, process.pid), "it is stopped")
            self.chance.choice([self.migrated, self.flapped, self.came, self.rule_deleted])()
            self.traffic()
        finally:
            process.send_signal(signal.SIGCONT)

    def reloaded(self) -> None:
        self.bed.daemon.config.write_text(self.chance.choice(POLICIES))
        self.bed.daemon.post("/v1/reload")

    def disk_full(self) -> None:
        """While applications are migrated that it would move."""
        filler = self.bed.daemon.run_dir / "filler"
        with filler.open("wb", buffering=0) as full:
            for size in (1 << 16, 64):
                with suppress(OSError):
                    while full.write(bytes(size)) == size:
                        pass
        self.migrated()
        self.traffic()
        filler.unlink()

    def _torn(self) -> None:
        """A part of a line is at the end of a journal: all that a kill can do to one."""
        path = self.bed.daemon.run_dir / self.chance.choice(("filters", "originals", "orders"))
        path = path.with_suffix(".journal")
        lines = path.read_bytes().splitlines() or [b"00000000 []"]
        line = self.chance.choice(lines)
        with path.open("ab") as file:
            file.write(line[: self.chance.randrange(1, len(line))])

    def _cut(self) -> None:
        """The end of the journal of our filters is lost, which a kill cannot do. Those it does not
        name any more are nobody's; the test that spoiled it deletes them."""
        path = self.bed.daemon.run_dir / "filters.journal"
        text = path.read_bytes()
        path.write_bytes(text[: self.chance.randrange(len(text) + 1)])
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        journal = FilterJournal(copy)
        named = {rule.location for rule in journal.ours(self.nic.name, self.nic.filters())}
        journal.close()
        copy.unlink()
        for rule in self.nic.filters():
            if rule.location not in named and rule.match not in self._theirs:
                self.nic.delete(rule.location)

    # ---- the operator

    def _order(self, verb: str) -> None:
        self.bed.daemon.order(verb, self.nic.name)

    def paused(self) -> None:
        self._order("pause")

    def resumed(self) -> None:
        self._order("resume")

    def disarmed(self) -> None:
        self._order("disarm")

    def armed(self) -> None:
        self._order("arm")

    # ---- the NIC

    def flapped(self) -> None:
        for state in ("down", "up"):
            command = ["ip", "-n", f"{self.bed.lab.name}-host", "link", "set", HOST_LINK, state]
            subprocess.run(command, check=True)

    def rule_deleted(self) -> None:
        """By hand, one that is not theirs."""
        ours = [rule for rule in self.nic.filters() if rule.match not in self._theirs]
        if ours:
            with suppress(FileNotFoundError):  # it was deleted meanwhile
                self.nic.delete(self.chance.choice(ours).location)

    def rule_inserted(self) -> None:
        """By hand, for traffic that there is not."""
        self._inserted()

    def nic_full(self) -> None:
        while self._inserted():
            pass

    def _inserted(self) -> bool:
        """False: there is no room."""
        match = Match.of(key(next(self._numbers)))
        try:
            self.nic.insert(match, 0)
        except OSError as refusal:
            if refusal.errno != errno.ENOSPC:
                raise
            return False
        self._theirs.add(match)
        return True

    def others_gone(self) -> None:
        """What others inserted is there until they delete it."""
        theirs = [rule for rule in self.nic.filters() if rule.match in self._theirs]
        assert {rule.match for rule in theirs} == self._theirs, "a foreign filter is gone"
        for rule in theirs:
            self.nic.delete(rule.location)
        self._theirs.clear()

    # ---- the applications

    def migrated(self) -> None:
        self.chance.choice(self.apps).migrate()

    def came(self) -> None:
        apps = self.bed.apps
        if len(self.apps) < MOST_APPS:
            kind = self.chance.choice((apps.tcp, apps.tcp_connected, apps.udp_connected))
            self.apps.append(kind(self.chance.choice((socket.AF_INET, socket.AF_INET6))))

    def went(self) -> None:
        if len(self.apps) > 1:
            self.apps.pop(self.chance.randrange(len(self.apps))).end()


@pytest.fixture
def small() -> Iterator[Lab]:
    with a_lab(slots=SLOTS) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Its run directory is a file system of 8 MiB."""
    run = tmp_path / "run"
    run.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs", run], check=True)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "--lazy", run], check=True)


def on_its_core(bed: Bed, app: Application) -> bool:
    """Its next hundred segments are delivered there."""
    start = bed.meter.read()

    def next_ones() -> FlowCount | None:
        count = bed.meter.read().since(start).flows.get(app.key)
        return count if count and count.local_segments + count.remote_segments >= 100 else None

    count = until(next_ones, f"segments of {app.key}")
    return count is not None and (count.remote_segments, count.app_cpu) == (0, app.cpu)


def state(bed: Bed, apps: list[Application]) -> dict[FlowKey, object]:
    """What became of each flow; and every filter that delivers none of them."""
    rules = {rule.match: rule.queue for rule in bed.lab.nic.filters()}
    found: dict[FlowKey, object] = {}
    for app in apps:
        row, queue = bed.daemon.flow(app.key), rules.pop(Match.of(app.key), None)
        port = Match.of(app.key)._replace(src=None, src_prefix=0, src_port=None)
        by_port = rules.pop(port, None)  # it stays until its last connection ends
        found[app.key] = row, queue
        if row is None and queue is None:
            cpu = rss_cpu(bed.lab, app.key) if by_port is None else bed.cpu_of(by_port)
            found[app.key] = ON_ITS_CORE if cpu == app.cpu else LEFT
        elif row is not None and queue is not None:
            there = row["target_cpu"] == app.cpu == bed.cpu_of(queue)
            if there and (row["state"], row["rule"]) == ("steered", "everything"):
                found[app.key] = ON_ITS_CORE
    if rules:
        found[apps[0].key] = rules
    return found


def settled(bed: Bed, apps: list[Application]) -> dict[str, Any]:
    """What there is once every flow has followed its application to the CPU of RSS and off it
    again, and nothing else is in the NIC."""
    queues = bed.lab.nic.queues
    until(lambda: all(queue.cpu is not None for queue in queues()), "each queue is on a CPU")
    homes = {app.key: rss_cpu(bed.lab, app.key) or 0 for app in apps}
    for app in apps:
        app.pin(homes[app.key])
        until(partial(on_its_core, bed, app), f"{app.key} is on its core", 60)
    for app in apps:
        app.pin(next(cpu for cpu in CPUS if cpu != homes[app.key]))
    wanted = {app.key: ON_ITS_CORE for app in apps}
    try:
        until(lambda: state(bed, apps) == wanted, "every flow is on its core", 120)
    except AssertionError as late:
        raise AssertionError(f"{late}: {state(bed, apps)}, {bed.daemon.status()}") from late
    for app in apps:
        delivered(bed.meter, app)
    (nic,) = bed.daemon.get("/v1/nics")["nics"]
    status = bed.daemon.status()
    cpus = Counter(
        value for setting, value in nic["settings"].items() if setting.startswith("queue-cpu:")
    )
    shown = (
        "armed",
        "paused",
        "up",
        "driver",
        "method",
        "queues",
        "manual",
        "filters_foreign",
        "rss",
    )
    return {
        **{name: nic[name] for name in shown},
        **{name: status[name] for name in ("observer", "table_capacity")},
        "turned away": status["flows_by_state"]["overflow"],  # now; its policy may have been small
        "queues on a CPU": cpus,
        "policy": [row["rule"] for row in bed.daemon.get("/v1/policy")["flows"]],
    }


def test_it_ends_as_a_fresh_start(small: Lab, folder: Path, tmp_path_factory: Any) -> None:
    with a_bed(small, folder, "bpf") as bed:
        before = small.nic.rss()
        bed.start()
        faults, end = Faults(bed, random.Random(SEED)), time.monotonic() + SECONDS
        print(f"seed {SEED}")
        while time.monotonic() < end:
            faults.one()
        print(Counter(faults.done))
        faults.others_gone()
        bed.daemon.end()
        faults.start("bpf")
        bed.daemon.config.write_text(EVERYTHING)
        bed.daemon.post("/v1/reload")
        faults.resumed()
        faults.armed()
        ended = settled(bed, faults.apps)
        assert bed.daemon.end() == 0
        assert "Traceback" not in bed.daemon.said()
        assert bed.daemon.restore().returncode == 0
        assert (small.nic.filters(), small.nic.rss()) == ([], before)
        bed.daemon = Daemon(tmp_path_factory.mktemp("fresh"), EVERYTHING)
        bed.start()
        assert ended == settled(bed, faults.apps)
        assert bed.daemon.end() == 0
