# SPDX-License-Identifier: GPL-2.0-or-later
"""What the log says: to systemd's journal with every field, and elsewhere a line on stderr."""

from __future__ import annotations

import io
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import Event
from atfnd.serve.log.journald import Journald, Stderr, fields_of, native, priority_of
from tests.bed import a_bed
from tests.labs import Lab
from tests.values import key
from tests.wait import until

INSERT = Event(
    7, 1, 1.0, "insert", "eth0", key(1), "queue 0 -> 3", "its thread runs on CPU 3", "bulk",
    "queue 0", "queue 3", "a.yaml:7",
)  # fmt: skip
ARMED = Event(8, 2, 2.0, "arm", "eth0", None, "armed", "asked for", None)

# As a service: our stderr is the journal's, and its socket is in the folder $0.
AS_A_SERVICE = """
mkdir -p /run/systemd/journal && mount --bind "$0" /run/systemd/journal
JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) exec "$@"
"""


def parsed(datagram: bytes) -> dict[str, str]:
    """The native protocol, from its description."""
    fields, at = {}, 0
    while at < len(datagram):
        end = datagram.index(b"\n", at)
        name, equals, value = datagram[at:end].partition(b"=")
        at = end + 1
        if not equals:
            size = int.from_bytes(datagram[at : at + 8], "little")
            value = datagram[at + 8 : at + 8 + size]
            at += 8 + size + 1
        fields[name.decode()] = value.decode(errors="surrogateescape")
    return fields


class FilterJournal:
    """Stands for systemd-journald: takes datagrams."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "socket"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.setblocking(False)
        self.messages: list[dict[str, str]] = []

    def read(self) -> list[dict[str, str]]:
        """All that came so far."""
        while True:
            try:
                self.messages.append(parsed(self._socket.recv(1 << 20)))
            except BlockingIOError:
                return self.messages

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def journal() -> Iterator[FilterJournal]:
    with tempfile.TemporaryDirectory() as folder:
        made = FilterJournal(Path(folder))
        yield made
        made.close()


names = st.from_regex(r"[A-Z][A-Z_]{0,20}", fullmatch=True)


@given(st.dictionaries(names, st.text(st.characters(codec="utf-8"))))
def test_whatever_is_written_is_read(fields: dict[str, str]) -> None:
    assert parsed(native(fields)) == fields


def test_a_change_has_every_part_of_it(journal: FilterJournal) -> None:
    Journald(journal.path).tell(INSERT)
    [message] = journal.read()
    assert {name.removeprefix("ATFND_"): text for name, text in message.items()} == {
        "MESSAGE": f"insert: eth0: {key(1)}: queue 0 -> 3 (its thread runs on CPU 3)"
        " [bulk, a.yaml:7]",
        "PRIORITY": "6", "SYSLOG_IDENTIFIER": "atfnd", "EVENT": "insert", "SEQ": "7",
        "INTERFACE": "eth0", "FLOW": str(key(1)), "WHAT": "queue 0 -> 3", "OLD": "queue 0",
        "NEW": "queue 3", "WHY": "its thread runs on CPU 3", "RULE": "bulk", "SOURCE": "a.yaml:7",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("event", "priority"),
    [
        (INSERT, 6),
        (ARMED, 5),
        (replace(INSERT, kind="refused", errno="ENOSPC"), 4),
        (replace(ARMED, kind="reload-failed"), 4),
    ],
)
def test_how_much_it_matters_and_what_is_not_known_is_no_field(event: Event, priority: int) -> None:
    assert priority_of(event) == priority
    assert ("ATFND_FLOW" in fields_of(event)) is (event.flow is not None)
    assert ("ATFND_OLD" in fields_of(event)) is (event.old is not None)


def test_a_journal_that_takes_nothing_holds_up_nobody(journal: FilterJournal) -> None:
    """Full, then gone, then there again."""
    log = Journald(journal.path)
    reported = 0
    while not log.lost:
        log.tell(INSERT)
        reported += 1
    journal.close()
    journal.path.unlink()
    log.tell(INSERT)
    assert log.lost == 2
    again = FilterJournal(journal.path.parent)
    log.tell(ARMED)
    assert [each["ATFND_EVENT"] for each in again.read()] == ["arm"]
    assert log.lost == 2
    again.close()


def test_only_if_our_stderr_is_the_journals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "stderr").open("w") as file:
        there = os.fstat(file.fileno())
        monkeypatch.setattr(sys, "stderr", file)
        assert Journald.is_ours({"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino}"})
        assert not Journald.is_ours({"JOURNAL_STREAM": f"{there.st_dev}:{there.st_ino + 1}"})
        assert not Journald.is_ours({})
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert not Journald.is_ours({"JOURNAL_STREAM": "1:1"})


def test_lines_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    log = Stderr()
    for event in (INSERT, ARMED, replace(ARMED, kind="reload-failed", why="a\nb")):
        log.tell(event)
    assert file.getvalue().splitlines() == [
        "arm: eth0: armed (asked for)",
        "reload-failed: eth0: armed (a",
        "b)",
    ]


def test_the_daemon_tells_the_journal_of_every_change(
    shared_lab: Lab, tmp_path: Path, journal: FilterJournal
) -> None:
    name = shared_lab.nic.name
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        wrapped = ["unshare", "-m", "sh", "-ec", AS_A_SERVICE, str(journal.path.parent)]
        words = "--nic", name, "--observer", "bpf", "--arm", name
        bed.daemon.start(*words, wrapped=wrapped)
        app = bed.apps.tcp()
        bed.steered(app)
        app.migrate()
        bed.steered(app)

        def changes() -> list[str]:
            reported = [each for each in journal.read() if each.get("ATFND_FLOW") == str(app.key)]
            return [each["ATFND_EVENT"] for each in reported]

        until(lambda: {"insert", "rewrite"} <= set(changes()), "both changes are in the journal")
        assert bed.daemon.said() == ""
        events = {row["seq"]: row for row in bed.daemon.events()}
        for reported in journal.read():
            row = events[int(reported["ATFND_SEQ"])]
            assert [row[part] for part in ("kind", "old", "new", "rule", "source")] == [
                reported.get(f"ATFND_{part}") for part in ("EVENT", "OLD", "NEW", "RULE", "SOURCE")
            ]
            if row["kind"] == "setting":
                assert row["new"]
                assert row["source"]
