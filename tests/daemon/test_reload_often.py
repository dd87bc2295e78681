# SPDX-License-Identifier: GPL-2.0-or-later
"""Fifty policies in a row while flows come and go end as the last one does from a fresh start."""

from __future__ import annotations

import itertools
import os
from collections import Counter
from pathlib import Path

from atfnd.model import FlowKey, Match
from tests.applications import Application, delivered, rss_cpu
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING, policy
from tests.labs import Lab
from tests.wait import until

__all__: list[str] = []

RELOADS = 50 * int(os.environ.get("ATFND_SOAK", "1"))
QUIET = "  - {{ name: quiet, match: {{ ports: [{}] }}, placement: leave }}"
LEFT, ON_ITS_CORE = "left alone", "on its core"


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


def unexpected(bed: Bed, found: dict[FlowKey, object]) -> object:
    """For the report of a failure: what the daemon shows and said of filters that deliver none of
    the flows."""
    ports = {
        str(match.dst_port)
        for left in found.values()
        if isinstance(left, dict)
        for match in left
        if match is not None
    }
    rows = [row for row in bed.daemon.flows() if row["local"].rpartition(":")[2] in ports]
    said = [each for each in bed.daemon.events() if any(port in str(each) for port in ports)]
    return ports, rows, said[-20:]


def settled(
    bed: Bed, apps: list[Application], left: Application, homes: dict[int, int | None]
) -> None:
    """All but this one are on their cores, and nothing else is in the NIC."""

    def wanted() -> dict[FlowKey, object]:  # RSS may be right, as queues follow others' threads
        by_rss = ON_ITS_CORE if left.cpu == rss_cpu(bed.lab, left.key) else LEFT
        return {app.key: by_rss if app is left else ON_ITS_CORE for app in apps}

    def home() -> bool:
        """Queues that nobody owns by this policy go home one a second, and flows follow. They stay
        if queues have only changed places."""
        rows = bed.daemon.get("/v1/queues")["queues"]
        exchanged = Counter(row["cpu"] for row in rows) == Counter(homes.values())
        return exchanged or all(r["owner"] or r["cpu"] == homes[r["queue"]] for r in rows)

    try:
        until(lambda: home() and state(bed, apps) == wanted(), "all is as the policy wants it", 60)
    except AssertionError as late:
        found = state(bed, apps)
        raise AssertionError(f"{late}: {found}; {unexpected(bed, found)}") from late
    for app in apps:
        if app is not left:
            delivered(bed.meter, app)


def test_fifty_reloads_end_as_a_fresh_start(shared_lab: Lab, tmp_path: Path) -> None:
    homes = {queue.index: queue.cpu for queue in shared_lab.nic.queues()}
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        apps = [bed.apps.udp_connected(), bed.apps.tcp(), bed.apps.udp()]
        left = apps[0]
        port = left.key.local_port
        policies = itertools.cycle(
            [
                policy(QUIET.format(port)),
                policy(QUIET.format("1-65535")),
                EVERYTHING,
                policy(order="strict", dwell="10ms"),
                policy(table=2, hold_down="100ms"),
                policy(QUIET.format(apps[1].key.local_port), order="bounded"),
                EVERYTHING.replace("[tcp, udp]", "[udp]"),
            ]
        )
        for number in range(RELOADS - 1):
            bed.daemon.config.write_text(next(policies))
            bed.daemon.post("/v1/reload")
            if number % 3 == 0:
                apps[number % len(apps)].migrate()
            if number % 10 == 5:
                apps.append(bed.apps.tcp())
            if number % 20 == 19:
                apps.pop(1).end()
        bed.daemon.config.write_text(policy(QUIET.format(port)))
        bed.daemon.post("/v1/reload")
        assert len(bed.daemon.events("reloaded")) == RELOADS
        settled(bed, apps, left, homes)
        shown = bed.daemon.get("/v1/policy")
        assert bed.daemon.end() == 0
        assert bed.daemon.restore().returncode == 0
        assert shared_lab.nic.filters() == []
        bed.start()
        settled(bed, apps, left, homes)
        fresh = bed.daemon.get("/v1/policy")
        assert [row["source"] for row in fresh["flows"]] == [
            row["source"] for row in shown["flows"]
        ]
