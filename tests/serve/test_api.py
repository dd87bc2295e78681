# SPDX-License-Identifier: GPL-2.0-or-later
"""What the API says, over its real Unix socket: asked with curl, as an operator would."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.daemon.cpu_times import CpuTimeReader
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.slots import FlowSlots
from atfnd.model import Conflict, Device, FlowState, Protocol, Queue, SteeringMethod
from atfnd.model.reason import Code
from tests.serve.asking import curl, get
from tests.serve.published import Serving, flow
from tests.serve.shown import found, lab


def test_the_latest_pairs_are_counted_for_as_long_as_somebody_asks(daemon: Serving) -> None:
    daemon.do(lambda: setattr(daemon.source, "unseen", "the count has just begun"))
    first = get(daemon, "/v1/pairs/latest")
    assert (first["pairs"], first["why_not"]) == ([], "the count has just begun")
    daemon.do(lambda: setattr(daemon.source, "unseen", None))
    assert daemon.source.pairs_wanted == [10]
    found = get(daemon, "/v1/pairs/latest?nic=lab:lab")
    assert [(row["rx_queue"], row["tx_queue"]) for row in found["pairs"]] == [(0, 0), (3, 1)]
    assert (found["seconds"], found["why_not"]) == (2, None)
    assert {row["rule"] for row in found["pairs"]} == {"gateway"}
    assert {row["why"] for row in found["pairs"]} == {"channels of one number are on one CPU"}


def test_placed_is_what_was_observed(daemon: Serving) -> None:
    def change() -> None:
        table = daemon.source.table
        table.put(flow(40_000)._replace(rx_cpu=None))
        table.put(flow(40_001)._replace(rx_cpu=1))
        table.put(flow(40_002)._replace(target_cpu=None, thread=None))

    daemon.do(change)
    rows = get(daemon, "/v1/flows")["flows"]
    assert [row["placed"] for row in rows] == [None, False, None]
    assert rows[2]["pid"] is None


def unsteered(daemon: Serving) -> None:
    """One flow that RSS delivers right, one that a policy leaves, one whose thread is not known."""
    left = found(22)._replace(rx_cpu=0, rx_queue=0)
    idle = found(8)._replace(thread=None, app_cpu=None)
    daemon.do(lambda: daemon.source.found.extend((found(7), left, idle)))


def test_flows_without_an_entry_are_listed_when_asked_for(daemon: Serving) -> None:
    unsteered(daemon)

    def rows(query: str) -> list[dict[str, Any]]:
        out = curl(daemon, f"/v1/flows/stream?{query}")[2]
        return [json.loads(line) for line in out.splitlines()]

    assert [row["state"] for row in rows("nic=lab:lab")] == ["steered", "steered", "observed"]
    local, left, idle = rows("all=1")[3:]
    assert [list(row) for row in (local, left, idle)] == [list(rows("")[0])] * 3
    assert (local["state"], local["placed"], local["tid"]) == ("local", True, 27_960)
    assert local["why"] == "its packets arrive on the CPU its thread runs on"
    assert (left["state"], left["placed"], left["rx_cpu"]) == ("left", None, 0)
    assert left["why"] == "policy `control` (built-in:12) says leave"
    assert (idle["state"], idle["app_cpu"], idle["pid"]) == ("left", None, None)
    assert rows("state=local") == [local]
    assert rows("all=1&comm=sshd") == [local, left]
    assert rows("all=1&nic=eth1") == []


def test_queues(daemon: Serving) -> None:
    third = get(daemon, "/v1/queues?nic=lab:lab")["queues"][3]
    said = {
        "queue": 3, "napi_id": 8196, "threaded": True, "pid": 903, "held_by": "its NAPI thread",
        "cpu": 3, "filters": 3, "packets": 30, "bytes": 4500, "by_filter": 21, "by_rss": 9,
    }  # fmt: skip
    assert {name: third[name] for name in said} == said


def test_topology_says_which_queues_a_cpu_serves(daemon: Serving) -> None:
    cpus = get(daemon, "/v1/topology")["cpus"]
    assert cpus[3]["queues"] == [{"nic": "lab:lab", "queue": 3}, {"nic": "eth1", "queue": 3}]
    assert (cpus[3]["smt"], cpus[4]["queues"]) == ([2, 3], [])


def test_a_nic_with_its_limits(daemon: Serving) -> None:
    def limit() -> None:
        nic = daemon.source.views[1]
        types = frozenset({(4, Protocol.TCP), (6, Protocol.UDP)})
        daemon.source.views[1] = replace(
            nic,
            method=SteeringMethod.RSS,
            method_why=Code.KERNEL("no filters"),
            caps=replace(nic.caps, flow_types=types, probed=False, why="ntuple is off"),
            device=Device("igb", "0000:01:00.0", 1, 4, 8, 256, 4096, 3, True, False, 0),
            conflicts=(Conflict("aRFS is on", "turn it off", False),),
            settings={"queue-cpu:0": "0-3"},
        )

    daemon.do(limit)
    _, nic = get(daemon, "/v1/nics")["nics"]
    assert (nic["method"], nic["method_why"]) == ("rss", "no filters")
    assert nic["caps"]["flow_types"] == ["tcp4", "udp6"]
    assert (nic["caps"]["probed"], nic["caps"]["why"]) == (False, "ntuple is off")
    device = {"driver": "igb", "bus": "0000:01:00.0", "channels": 4, "channels_max": 8}
    assert {name: nic["device"][name] for name in device} == device
    assert nic["conflicts"] == [{"what": "aRFS is on", "advice": "turn it off", "blocks": False}]
    assert get(daemon, "/v1/queues?nic=eth1")["queues"][0]["allowed_cpus"] == "0-3"


def test_filters_in_pages(daemon: Serving) -> None:
    first = get(daemon, "/v1/filters?nic=lab:lab&limit=3")
    assert [row["location"] for row in first["filters"]] == [9, 100, 101]
    assert [row["ours"] for row in first["filters"]] == [False, True, False]
    assert first["filters"][1]["match"] == "tcp from 10.9.0.1:40000 to 10.0.0.2:5201"
    rest = get(daemon, f"/v1/filters?nic=lab:lab&limit=3&cursor={first['next']}")
    assert [row["location"] for row in rest["filters"]] == [102]
    assert rest["next"] is None


def test_explain_what_several_flows_have_lists_them(daemon: Serving) -> None:
    answer = get(daemon, "/v1/explain?flow=5201")
    assert (answer["flow"], answer["verdict"]) == (None, "3 flows have 5201.")
    assert [row["cookie"] for row in answer["flows"]] == [1_040_000, 1_040_001, 1_040_002]
    assert answer["advice"] == "name one: atfnctl explain tcp 10.0.0.2:5201 10.9.0.1:40000"
    daemon.do(lambda: daemon.source.fill(range(500)))
    answer = get(daemon, "/v1/explain?flow=5201")
    assert len(answer["flows"]) == 100
    assert answer["verdict"].startswith("The first 100 ")


def test_explain_a_flow_without_an_entry(daemon: Serving) -> None:
    unsteered(daemon)
    answer = get(daemon, "/v1/explain?flow=%5B::ffff:10.0.0.2%5D:5201%20%5B::ffff:10.9.0.1%5D:7")
    assert answer["flow"]["state"] == "local"
    assert answer["chain"] == [
        "tcp 10.0.0.2:5201 <- 10.9.0.1:7 exists: it is used by thread 27960 (sshd), which ran last "
        "on CPU 1.",
        "It has no entry in the Flow-to-Core table.",
        "lab:lab: no filter catches it; RSS sends it to queue 3.",
        "Queue 3 is polled by NAPI 8196 in kernel thread 903, on CPU 3.",
        "Its packets were last seen from queue 1 on CPU 1: the application's own.",
    ]
    assert answer["verdict"] == "Delivered by RSS on CPU 1, where its thread runs: nothing to do."
    assert answer["advice"] is None
    answer = get(daemon, "/v1/explain?flow=:22")
    assert answer["verdict"].startswith("Left to RSS on purpose: policy `control`")
    answer = get(daemon, "/v1/explain?flow=:8")
    assert answer["chain"][0].endswith("10.9.0.1:8 exists; its thread is not known.")
    daemon.do(lambda: setattr(daemon.source, "table", FlowTable(8)))
    answer = get(daemon, "/v1/explain?flow=:5201")
    assert [row["state"] for row in answer["flows"]] == ["local", "left", "left"]


def test_cpu_time_is_read_at_a_bounded_cost() -> None:
    """Of this process, as if it polled a queue."""
    polled = Queue(index=3, napi_id=8193, irq=None, pid=os.getpid(), cpu=1, threaded=True)
    me = replace(lab(), queues=(polled,))
    times = CpuTimeReader()
    first, (thread,) = times.shown([me])
    assert (thread.nic, thread.queue, thread.cpu) == (me.name, 3, 1)
    assert thread.ran_ns > 0
    while (again := times.shown([me]))[0] is first:
        pass
    assert again[0].at_ns - first.at_ns >= 99_000_000  # 0.1 s from begin to begin
    assert again[1][0].ran_ns >= thread.ran_ns
    assert all(again[0].busy_ns[cpu] >= busy_ns for cpu, busy_ns in first.busy_ns.items())


def test_bytes_are_as_old_as_the_audit_or_the_report(daemon: Serving) -> None:
    """An idle flow was read by the audit, one that was reported since has newer bytes."""

    def use() -> None:
        daemon.source.audited = 5_000
        daemon.source.table.put(flow(40_000)._replace(used_ns=9_000))
        daemon.source.table.put(flow(40_001)._replace(used_ns=4_000))

    daemon.do(use)
    rows = get(daemon, "/v1/flows")["flows"]
    assert [row["read_ns"] for row in rows][:2] == [9_000, 5_000]


# Pages of a table that changes between them: complete, and nothing twice


def test_a_filter_pages_through_the_whole_table(daemon: Serving) -> None:
    def fill() -> None:
        for n in range(3000):
            state = FlowState.OVERFLOW if n % 100 == 0 else FlowState.STEERED
            daemon.source.table.put(flow(n, state))

    daemon.do(fill)
    rows: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        page = get(daemon, f"/v1/flows?limit=1000&cursor={cursor}&state=overflow")
        rows += page["flows"]
        cursor = page["next"]
    assert len({row["cookie"] for row in rows}) == len(rows) == 30


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())), st.integers(1, 7))
def test_slots_keep_their_flow(changes: list[tuple[int, bool]], step: int) -> None:
    """Against a plain set: who stays from the first page to the last is met exactly once."""
    slots = FlowSlots()
    slot = {n: slots.add(flow(n)) for n in range(10)}
    present, always = set(range(10)), set(range(10))
    met: list[int] = []
    at = 0
    work = iter(changes)
    while at < len(slots):
        met += [f.key.remote_port for f in slots[at : at + step] if f is not None]
        at += step
        n, add = next(work, (0, True))
        if add and n in present:
            slots.replace(slot[n], flow(n))
        elif add:
            slot[n] = slots.add(flow(n))
            present.add(n)
        elif n in present:
            slots.drop(slot.pop(n))
            present.discard(n)
            always.discard(n)
    assert {f.key.remote_port for f in slots if f is not None} == present
    assert all(met.count(n) == 1 for n in always)


def test_slots_are_used_again() -> None:
    slots = FlowSlots()
    for n in range(1000):
        slots.drop(slots.add(flow(n)))
    assert len(slots) <= 1
