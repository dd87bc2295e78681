# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon that only observes is recorded, and another policy is tried on what it saw."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.bed import Bed, a_bed
from tests.daemons import ATFND, EVERYTHING, Row, policy
from tests.labs import Lab
from tests.serve.asking import ATFNCTL, environment
from tests.wait import until

__all__: list[str] = []

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
