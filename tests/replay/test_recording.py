# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon is recorded. One that only observes: another policy is tried on what it saw. One that
places flows at their birth: by its own policy a replay does what it did, by another one what that
one would have done."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from atfnd.model import FlowKey
from tests.bed import Bed, a_bed
from tests.daemons import ATFND, EVERYTHING, Row, policy
from tests.labs import Lab, a_lab
from tests.serve.asking import ATFNCTL, environment
from tests.wait import until

LEAVE = policy("  - { name: all, match: { ports: [1-65535] }, placement: leave }")


def used_on(cpu: int, row: Row) -> bool:
    return bool(row["app_cpu"] == cpu)


def replayed(file: Path, folder: Path, config: str) -> dict[str, Any]:
    other = folder / "other.yaml"
    other.write_text(config)
    done = subprocess.run(
        [ATFND, "replay", str(file), "--policy", str(other), "--json"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@contextmanager
def recording(bed: Bed, file: Path) -> Iterator[None]:
    recorder = subprocess.Popen(
        [ATFNCTL, "record", str(file), "--seconds", "600"],
        env=environment(bed.daemon.socket), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        until(lambda: file.exists() and file.stat().st_size, "it is recorded")
        yield
    finally:
        recorder.terminate()
        recorder.wait(30)


def test_what_was_only_observed_is_replayed(shared_lab: Lab, tmp_path: Path, observer: str) -> None:
    """One flow is there before, one comes; both migrate."""
    file = tmp_path / "seen.jsonl"
    with a_bed(shared_lab, tmp_path, observer) as bed:
        bed.start(arm=False)
        before = bed.apps.tcp()
        bed.row(before, lambda row: row["state"] == "observed", "is observed")
        with recording(bed, file):
            later = bed.apps.tcp()
            for app in (before, later):
                bed.row(app, lambda row: row["state"] == "observed", "is observed")
                app.migrate()
                bed.unknown_to_table(app)  # RSS has it right there
                cpu = app.migrate()
                bed.row(app, partial(used_on, cpu), "has come back")
            audits = file.read_bytes().count(b'{"audited"')
            until(lambda: file.read_bytes().count(b'{"audited"') > audits + 1, "and looked at")
        assert bed.daemon.status()["actions_applied"] == 0
    left = replayed(file, tmp_path, LEAVE)
    assert (left["actions"], left["most_filters"]) == ([], 0)
    found = replayed(file, tmp_path, EVERYTHING)
    moves = [each for each in found["actions"] if each["flow"] is not None]
    assert {each["flow"] for each in moves} <= {str(app.key) for app in (before, later)}
    assert {each["kind"] for each in moves} <= {"insert", "rewrite", "delete"}
    assert moves
    if observer == "bpf":  # the other sees no packets
        assert found["locality_replayed"] > found["locality_recorded"]


def test_what_the_policy_leaves_alone_is_recorded_too(shared_lab: Lab, tmp_path: Path) -> None:
    """The kernel is silent of it only while nobody records."""
    file = tmp_path / "seen.jsonl"
    with a_bed(shared_lab, tmp_path, "bpf", LEAVE) as bed:
        bed.start()
        app = bed.apps.tcp()
        with recording(bed, file):
            until(lambda: f'"remote_port": {app.key.remote_port}' in file.read_text(), "it is seen")
        assert bed.daemon.flow(app.key) is None


OF_PROCESS = policy(
    """\
  - name: mine
    match: { command: "*tests.talker echo tcp *", user: root, direction: accepted }
    placement: { near: core }
    order: immediate
  - { name: others, match: { protocol: [tcp, udp] }, placement: leave }"""
)


def test_what_a_process_is_decides_as_it_did_in_the_daemon(shared_lab: Lab, tmp_path: Path) -> None:
    """Recorded under a policy that asks nothing of processes; then a daemon under the one that
    does, and what that one would have decided."""
    file = tmp_path / "seen.jsonl"
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start(arm=False)
        accepted, connected, other = bed.apps.tcp(), bed.apps.tcp_connected(), bed.apps.udp()
        apps = accepted, connected, other
        for app in apps:
            bed.row(app, lambda row: row["state"] == "observed", "is observed")
        done = bed.daemon.ctl("record", str(file), "--seconds", "1")
        assert done.returncode == 0, done.stderr
        bed.daemon.config.write_text(OF_PROCESS)
        bed.daemon.end()
        bed.start()
        bed.steered(accepted)
        steered = {app.key for app in apps if bed.rule(app)}
    found = replayed(file, tmp_path, OF_PROCESS)
    inserted = [each for each in found["actions"] if each["kind"] == "insert"]
    assert {each["flow"] for each in inserted} == {str(key) for key in steered}
    assert {each["rule"] for each in inserted} == {"mine"}
    flows = {each["rule"]: each["flows"] for each in found["rules"]}
    assert (flows["mine"], flows["others"]) == (1, 2)


# Flows that are placed at their birth.

STRICT = policy(order="strict")
MOVES = "insert", "rewrite", "delete", "queue-cpu"

Done = tuple[str, str | None, str]  # what kind, of which flow, from where to where


@pytest.fixture
def two_queues() -> Iterator[Lab]:
    """One a CPU: each can be held."""
    with a_lab(queues=2) as made:
        yield made


def did(bed: Bed) -> list[Done]:
    """What the daemon did, in its order."""
    return [(row["kind"], row["flow"], row["what"]) for row in bed.daemon.events(*MOVES)]


def would(found: dict[str, Any]) -> list[Done]:
    """What a replay would have done, in its order."""
    return [_done(row) for row in found["actions"] if row["kind"] in MOVES]


def _done(row: Row) -> Done:
    what = "queue" if row["queue"] is None else f"queue {row['queue']}: CPU"
    old, new = ("-" if place is None else place for place in (row["old"], row["new"]))
    return row["kind"], row["flow"], f"{what} {old} -> {new}"


def recorded(bed: Bed, file: Path, happens: Callable[[], None]) -> list[Done]:
    """Start the daemon, and record what happens; what it did meanwhile."""
    bed.start()
    before = len(did(bed))
    with recording(bed, file):
        happens()
        audits = file.read_text().count('{"audited"')
        until(lambda: file.read_text().count('{"audited"') > audits, "all is written")
    return did(bed)[before:]


def keys_in(bed: Bed) -> list[FlowKey]:
    """Whom the filters in the NIC are for."""
    return [rule.match.key() for rule in bed.lab.nic.filters() if rule.match]


def moved_since(bed: Bed, before: int) -> bool:
    """A queue went to another CPU, after so many actions."""
    return "queue-cpu" in {kind for kind, _, _ in did(bed)[before:]}


def links(pid: int) -> int:
    """How many BPF links a process holds."""
    return sum("link_type:" in said(file) for file in Path(f"/proc/{pid}/fdinfo").iterdir())


def said(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""


def test_a_servers_connections_are_replayed_by_its_ports_rule(
    two_queues: Lab, tmp_path: Path
) -> None:
    """The server migrates, and its queue with it; a connection of ours comes and goes."""
    file, keys = tmp_path / "seen.jsonl", list[FlowKey]()
    with a_bed(two_queues, tmp_path, "bpf", STRICT) as bed:

        def happens() -> None:
            server = bed.apps.tcp()
            port = server.key._replace(remote=bytes(4), remote_port=0)
            until(lambda: port in keys_in(bed), "its port has a rule")
            apps = [server, *(bed.apps.joins(server) for _ in range(3))]
            keys.extend(app.key for app in apps)
            wanted = [f'"remote_port": {app.key.remote_port}' for app in apps]
            until(lambda: all(each in file.read_text() for each in wanted), "they are seen")
            for _ in range(2):
                moved = partial(moved_since, bed, len(did(bed)))
                server.migrate()
                until(moved, "its queue follows")
            ours = bed.apps.tcp_connected()
            bed.steered(ours)
            ours.end()
            bed.unknown(ours)

        done = recorded(bed, file, happens)
    assert would(replayed(file, tmp_path, STRICT)) == done
    port = keys[0]._replace(remote=bytes(4), remote_port=0)
    assert str(port) in {flow for _, flow, _ in done}
    # The first may have come before its port's rule, and have got one of its own.
    assert not {flow for _, flow, _ in done} & set(map(str, keys[1:]))
    assert [kind for kind, _, _ in done].count("queue-cpu") >= 2
    other = would(replayed(file, tmp_path, EVERYTHING))
    assert {flow for kind, flow, _ in other if kind == "insert"} >= set(map(str, keys))
    assert str(port) not in {flow for _, flow, _ in other}


def test_births_are_recorded_for_a_policy_that_wants_them(two_queues: Lab, tmp_path: Path) -> None:
    """The daemon's own wants none: it observes them as long as it is recorded."""
    file = tmp_path / "seen.jsonl"
    with a_bed(two_queues, tmp_path, "bpf") as bed:
        bed.start()
        assert bed.daemon.process is not None
        held, pid = links(bed.daemon.process.pid), bed.daemon.process.pid
        with recording(bed, file):
            until(lambda: links(pid) > held, "births are observed")
            server = bed.apps.serves()
            port = server.key._replace(remote=bytes(4), remote_port=0)
            until(lambda: '"ports": true' in file.read_text(), "its port is looked at")
            apps = [bed.apps.joins(server) for _ in range(3)]
            for app in apps:
                bed.steered(app)
        until(lambda: links(pid) <= held, "and are not any more", 90)
        assert {flow for _, flow, _ in did(bed)} == {str(app.key) for app in apps}
    found = would(replayed(file, tmp_path, STRICT))
    assert {flow for kind, flow, _ in found if kind == "insert"} == {str(port)}
