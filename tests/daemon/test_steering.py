# SPDX-License-Identifier: GPL-2.0-or-later
"""The main job: a flow's packets are delivered on the core its application runs on, and follow it.

Real applications, real traffic, the daemon as a process, both observers; what is delivered where is
counted by bench/meter.py, which knows nothing of atfnd.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from bench.meter import FlowCount, Reading
from tests.applications import Application, Applications, delivered
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS
from tests.kernel.netns import listening
from tests.labs import HOST, Lab
from tests.wait import until

V4, V6 = socket.AF_INET, socket.AF_INET6
FLOWS: dict[str, Callable[[Applications], Application]] = {
    "tcp4": lambda apps: apps.tcp(V4),
    "tcp6": lambda apps: apps.tcp(V6),
    "tcp4-on-ipv6-socket": lambda apps: apps.tcp(V4, listen="::"),
    "udp4-connected": lambda apps: apps.udp_connected(V4),
    "udp6-connected": lambda apps: apps.udp_connected(V6),
    "udp4": lambda apps: apps.udp(V4),
    "udp6": lambda apps: apps.udp(V6),
    "udp4-on-any": lambda apps: apps.udp(V4, listen="0.0.0.0"),
}


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    with a_bed(shared_lab, tmp_path_factory.mktemp("daemon"), request.param) as made:
        made.start()
        yield made


@pytest.mark.parametrize("kind", FLOWS)
def test_packets_follow_the_application(bed: Bed, kind: str) -> None:
    app = FLOWS[kind](bed.apps)
    row = bed.steered(app)
    assert (row["pid"], row["target_cpu"], row["rule"]) == (app.pid, app.cpu, "everything")
    delivered(bed.meter, app)
    rule = bed.rule(app)
    assert rule is not None
    assert (rule.location, rule.queue) == (row["filter"], row["target_queue"])
    for _ in range(2):
        app.migrate()
        delivered(bed.meter, app)
    row = bed.steered(app)
    moved = bed.rule(app)
    assert moved is not None
    assert (moved.location, moved.queue) == (rule.location, row["target_queue"])
    assert moved.hits is not None
    assert moved.hits >= 3 * 100
    app.end()


def test_a_dual_stack_socket_has_a_rule_for_each_family(bed: Bed) -> None:
    app = bed.apps.udp(V4, listen="::")
    bed.steered(app)
    delivered(bed.meter, app)
    app.migrate()
    delivered(bed.meter, app)
    mine = [
        (rule.match.family, rule.queue)
        for rule in bed.lab.nic.filters()
        if rule.match is not None and rule.match.dst_port == app.key.local_port
    ]
    assert sorted(family for family, _ in mine) == [4, 6]
    assert {bed.cpu_of(queue) for _, queue in mine if queue is not None} == {app.cpu}
    app.end()
    bed.unknown(app)
    ports = {rule.match.dst_port for rule in bed.lab.nic.filters() if rule.match is not None}
    assert app.key.local_port not in ports


def test_an_entry_ends_with_its_socket(bed: Bed) -> None:
    apps = {kind: make(bed.apps) for kind, make in FLOWS.items()}
    for app in apps.values():
        bed.steered(app)
    first, *rest = apps.values()
    first.close()  # the process lives on
    for app in rest:
        app.end()
    bed.unknown(*apps.values())


def test_a_flow_that_rss_has_right_takes_no_rule(bed: Bed) -> None:
    right = bed.apps.tcp(by_rss=True)
    delivered(bed.meter, right)
    wrong = bed.apps.tcp()
    bed.steered(wrong)
    assert (bed.daemon.flow(right.key), bed.rule(right)) == (None, None)
    for app in (right, wrong):
        app.end()


def test_a_bulk_receiver(bed: Bed) -> None:
    """iperf3, four streams of one receiver: after it has settled every packet is on its core."""
    port, cpu = 5201, 0
    host, peer = (f"{bed.lab.name}-{role}" for role in ("host", "peer"))
    with ExitStack() as stack:
        for netns, words in (
            (host, ["taskset", "-c", str(cpu), "iperf3", "-s", "-1", "-p", str(port)]),
            (peer, ["iperf3", "-c", HOST[V4], "-p", str(port), "-P", "4", "-t", "60", "-b", "20M"]),
        ):
            running = subprocess.Popen(
                ["ip", "netns", "exec", netns, *words], stdout=subprocess.DEVNULL
            )
            stack.callback(running.wait)
            stack.callback(running.kill)
            if netns == host:
                until(lambda: listening(host, port), "iperf3 listens")

        def flows(start: Reading) -> list[FlowCount]:
            found = bed.meter.read().since(start).flows.items()
            return [count for key, count in found if key.local_port == port]

        def segments(start: Reading) -> tuple[int, int]:
            mine = flows(start)
            return sum(c.local_segments for c in mine), sum(c.remote_segments for c in mine)

        def settled() -> bool:
            """Each of the four streams, no matter which had the CPU first."""
            start = bed.meter.read()
            until(lambda: sum(segments(start)) >= 200, "traffic flows", 30)
            there = [count for count in flows(start) if count.local_segments >= 20]
            return len(there) == 4 and segments(start)[1] == 0

        until(settled, "every packet comes to be delivered on the receiver's core", 30)
        start = bed.meter.read()
        until(lambda: sum(segments(start)) >= 2000, "traffic flows on", 30)
        assert segments(start)[1] == 0


def test_an_operator_sees_the_chain(bed: Bed) -> None:
    app = bed.apps.tcp()
    row = bed.steered(app)
    done = bed.daemon.ctl("flows", "--pid", str(app.pid), "--json")
    (shown,) = json.loads(done.stdout)
    wanted = (
        "proto local remote pid tid comm app_cpu rx_queue rx_cpu target_cpu placed state filter"
    )
    assert {*wanted.split(), "rule", "why"} <= shown.keys()
    assert (shown["filter"], shown["comm"]) == (row["filter"], "python")
    done = bed.daemon.ctl("explain", row["local"] + "-" + row["remote"])
    assert done.returncode == 0, done.stderr
    for word in (f"CPU {app.cpu}", f"queue {row['target_queue']}", f"thread {app.pid}"):
        assert word in done.stdout
    assert "pinned to one CPU (by its affinity)" in " ".join(done.stdout.split())
    app.end()
