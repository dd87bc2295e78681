# SPDX-License-Identifier: GPL-2.0-or-later
"""What goes wrong on a machine, by chance: each method of `Faults` but the first few is one fault.

A fault leaves the machine in order (a link that went down is up again), but not what came of it:
what the daemon released stays so, others' filters stay, and so does what the operator said.
"""

from __future__ import annotations

import errno
import random
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from atfnd.model import Match
from atfnd.nic.lab.device import HOST_LINK
from atfnd.program.journals.filter_journal import FilterJournal
from tests.applications import Application
from tests.bed import Bed
from tests.daemon.failing import in_kernel, loaded, stopped
from tests.daemons import EVERYTHING, OBSERVERS, policy
from tests.values import key
from tests.wait import until

__all__ = ["Faults"]

POLICIES = (
    EVERYTHING,
    policy(order="strict", dwell="10ms"),
    policy(order="bounded"),
    policy(table=2, hold_down="100ms"),
    policy("  - { name: quiet, match: { ports: [1-65535] }, placement: leave }"),
    EVERYTHING.replace("[tcp, udp]", "[udp]"),
)
MOST_APPS = 6


class Faults:
    """Applications on a bed, and what happens to them and to the daemon that steers them."""

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
