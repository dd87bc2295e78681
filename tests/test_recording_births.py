# SPDX-License-Identifier: GPL-2.0-or-later
"""A daemon that places flows at their birth is recorded: by its own policy a replay does what it
did, by another one what that one would have done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atfnd.model import FlowKey
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING, Row, policy
from tests.labs import Lab, a_lab
from tests.test_recording import recording, replayed
from tests.wait import until

__all__: list[str] = []

STRICT = policy(order="strict")
BOUNDED = policy(order="bounded")
FEW = BOUNDED + 'interfaces: [{ match: { name: "*" }, rules: { max: 8 } }]\n'
MOVES = "insert", "rewrite", "delete", "queue-cpu"

Done = tuple[str, str | None, str | None]  # what kind, of which flow, where to


def did(bed: Bed) -> list[Done]:
    """What the daemon did, in its order."""
    return [(row["kind"], row["flow"], row["new"]) for row in bed.daemon.events(*MOVES)]


def would(found: dict[str, Any]) -> list[Done]:
    """What a replay would have done, in its order."""
    return [_done(row) for row in found["actions"] if row["kind"] in MOVES]


def _done(row: Row) -> Done:
    to = "queue" if row["queue"] is None else "CPU"
    return row["kind"], row["flow"], None if row["new"] is None else f"{to} {row['new']}"


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
    return [rule.match.key() for rule in bed.lab.nic.rules() if rule.match]


def test_a_servers_connections_are_replayed_by_its_ports_rule(lab: Lab, tmp_path: Path) -> None:
    file, keys = tmp_path / "seen.jsonl", list[FlowKey]()
    with a_bed(lab, tmp_path, "bpf", STRICT) as bed:

        def happens() -> None:
            server = bed.apps.tcp()
            port = server.key._replace(remote=bytes(4), remote_port=0)
            until(lambda: port in keys_in(bed), "its port has a rule")
            apps = [server, *(bed.apps.joins(server) for _ in range(3))]
            keys.extend(app.key for app in apps)
            wanted = [f'"remote_port": {app.key.remote_port}' for app in apps]
            until(lambda: all(each in file.read_text() for each in wanted), "they are seen")

        done = recorded(bed, file, happens)
    assert would(replayed(file, tmp_path, STRICT)) == done
    port = keys[0]._replace(remote=bytes(4), remote_port=0)
    assert {flow for _, flow, _ in done if flow} == {str(port)}
    other = would(replayed(file, tmp_path, EVERYTHING))
    assert {flow for kind, flow, _ in other if kind == "insert"} == set(map(str, keys))


def test_flows_of_a_prefix_are_replayed_by_their_shared_rule(tmp_path: Path) -> None:
    """A queue each CPU has of its own can be held."""
    file, keys = tmp_path / "seen.jsonl", list[FlowKey]()
    with a_lab(queues=2) as lab, a_bed(lab, tmp_path, "bpf", FEW) as bed:

        def happens() -> None:
            app = bed.apps.udp_connected()
            keys.extend([app.key, *(bed.apps.talks_also(app) for _ in range(6))])
            shared = app.key._replace(local_port=0, remote_prefix=32)
            until(lambda: keys_in(bed) == [shared], "they share a filter, and have no other")

        done = recorded(bed, file, happens)
    assert would(replayed(file, tmp_path, FEW)) == done
    assert any("/32" in (flow or "") for kind, flow, _ in done if kind == "insert")
    other = would(replayed(file, tmp_path, BOUNDED))
    assert {flow for kind, flow, _ in other if kind == "insert"} == set(map(str, keys))
    assert "delete" not in {kind for kind, _, _ in other}
