# SPDX-License-Identifier: GPL-2.0-or-later
"""A process or a cgroup may own a queue: all of its flows come by that one, and it follows them.

`test_order.py` has threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.applications import CPUS, Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import Row, policy
from tests.labs import Lab
from tests.observe.groups import GROUP, UNIT, a_group
from tests.wait import until

MIGRATIONS = 4


def owned_by(owner: str) -> str:
    return policy(f"""\
  - name: together
    match: {{ protocol: tcp }}
    placement: {{ near: core }}
    full_core: stay
    owner: {owner}
    order: strict
""")


def one_queue(bed: Bed, apps: Sequence[Application], cpu: int) -> str | None:
    """The owner of the queue that all of them are led to, if it is one and on this CPU."""
    rows = [bed.daemon.flow(app.key) for app in apps]
    queues = {None if row is None else row["target_queue"] for row in rows}
    if len(queues) != 1 or None in queues:
        return None
    queue = bed.daemon.get("/v1/queues")["queues"][queues.pop()]
    return queue["owner"] if queue["cpu"] == cpu else None


def led(row: Row) -> bool:
    return row["filter"] is not None or row["state"] == "port"


def owns(bed: Bed, apps: Sequence[Application], cpu: int, owner: str) -> bool:
    return one_queue(bed, apps, cpu) == owner


def on_one_cpu(bed: Bed, count: int) -> list[Application]:
    """RSS delivers none of them there: a move out of a queue of its own CPU cannot be held."""
    apps: dict[int, list[Application]] = {cpu: [] for cpu in CPUS}
    while max(map(len, apps.values())) < count:
        app = bed.apps.tcp()
        apps[app.cpu].append(app)
    most = max(apps.values(), key=len)
    for app in (app for others in apps.values() if others is not most for app in others):
        app.end()
    return most


def migrate(bed: Bed, apps: Sequence[Application], owner: str, hosts: Sequence[str]) -> None:
    """All of the owner goes to one CPU after the other: no flow's rule is rewritten for that."""
    rewritten = len(bed.daemon.events("rewrite"))
    for turn in range(MIGRATIONS):
        cpu = CPUS[turn % 2]
        for app in apps:
            app.cpu = cpu
        for app, words in zip(apps, hosts, strict=False):
            app.host.tell(f"{words} {cpu}")
        until(partial(owns, bed, apps, cpu, owner), f"{owner} is followed, {turn}", 60)
        for app in apps:
            delivered(bed.meter, app)
    assert len(bed.daemon.events("rewrite")) == rewritten
    assert [each for each in bed.daemon.status()["moves"] if each["verdict"] == "violated"] == []


def test_the_queue_of_a_thread_that_ended_goes_home(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", owned_by("thread")) as bed:
        homes = {queue.index: queue.cpu for queue in lab.nic.queues()}
        app = bed.apps.tcp()
        bed.start()
        queue = bed.row(app, led, "has a rule: RSS does not lead it there")["target_queue"]
        until(partial(owns, bed, [app], app.cpu, f"thread {app.pid}"), "it owns a queue", 60)
        if bed.cpu_of(queue) == homes[queue]:
            app.migrate()
        until(lambda: bed.cpu_of(queue) == app.cpu != homes[queue], "its queue follows it", 60)
        app.end()
        until(
            lambda: {each.index: each.cpu for each in lab.nic.queues()} == homes,
            "every queue is on its CPU again", 30,
        )  # fmt: skip
        why = "it has no owner: it goes back to the CPU it had"
        until(lambda: any(e["why"] == why for e in bed.daemon.events("queue-cpu")), "said so", 5)
        moves = bed.daemon.status()["moves"]
        assert [each for each in moves if each["verdict"] == "violated"] == []


def test_the_threads_of_a_process(lab: Lab, tmp_path: Path) -> None:
    with a_bed(lab, tmp_path, "bpf", owned_by("process")) as bed:
        server = bed.apps.tcp()
        server.host.tell("threads")
        apps = [server, bed.apps.joins(server), bed.apps.joins(server)]
        bed.start()
        for app in apps:
            bed.row(app, led, "has a rule: RSS, which is right elsewhere, does not lead it")
        server.host.tell(f"together {server.cpu}")
        owner = f"process {server.pid}"
        until(partial(owns, bed, apps, server.cpu, owner), "it owns their queue", 60)
        threads = {row["tid"] for app in apps if (row := bed.daemon.flow(app.key))}
        assert len(threads) == len(apps)
        migrate(bed, apps, owner, ["together"])


def test_the_processes_of_a_cgroup(lab: Lab, tmp_path: Path) -> None:
    with a_group() as move, a_bed(lab, tmp_path, "bpf", owned_by("cgroup")) as bed:
        move(f"{GROUP}/{UNIT}")
        try:
            apps = on_one_cpu(bed, 3)
        finally:
            move(None)
        bed.start()
        for app in apps:
            bed.row(app, led, "has a rule: RSS, which is right elsewhere, does not lead it")
        for app in apps:
            app.pin(CPUS[0])
        found = until(lambda: one_queue(bed, apps, CPUS[0]), "one owns their queue", 60)
        assert found is not None
        assert found.startswith("cgroup ")
        migrate(bed, apps, found, ["pin"] * len(apps))
