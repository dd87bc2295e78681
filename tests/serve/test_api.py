# SPDX-License-Identifier: GPL-2.0-or-later
"""What the API says, over its real Unix socket: asked with curl, as an operator would."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from atfnd.daemon.cpu_times import CpuTimeReader
from atfnd.engine.table.flow_table import FlowTable
from atfnd.model import Conflict, Device, Protocol, Queue, SteeringMethod
from atfnd.model.reason import Code
from tests.serve.asking import curl, get
from tests.serve.published import Serving, flow, serving, three_flows
from tests.serve.shown import found, lab

LAB = {"nic": "lab:lab", "paused": False}
ETH1 = {"nic": "eth1", "paused": False}
KEYS = [
    "proto", "local", "remote", "pid", "tid", "comm", "app_cpu", "rx_queue", "rx_cpu",
    "target_queue", "target_cpu", "placed", "fell_back", "habit", "home", "state", "filter",
    "rule", "why", "why_code", "nic", "cookie", "bytes", "read_ns", "age_s", "moved_s", "move",
]  # fmt: skip


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        yield running


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


def test_a_flow_has_every_field_of_the_design(daemon: Serving) -> None:
    answer = get(daemon, "/v1/flows")
    assert answer["next"] is None
    rows = answer["flows"]
    assert [list(row) for row in rows] == [KEYS] * 3
    first = rows[0]
    assert first["proto"] == "tcp"
    assert first["local"] == "10.0.0.2:5201"
    assert first["remote"] == "10.9.0.1:40000"
    assert (first["pid"], first["tid"], first["comm"]) == (4120, 4121, "iperf3")
    assert first["placed"] is True
    assert (first["state"], first["filter"], first["cookie"]) == ("steered", 100, 1_040_000)


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
    assert [list(row) for row in (local, left, idle)] == [KEYS] * 3
    assert (local["state"], local["placed"], local["tid"]) == ("local", True, 27_960)
    assert local["why"] == "its packets arrive on the CPU its thread runs on"
    assert (left["state"], left["placed"], left["rx_cpu"]) == ("left", None, 0)
    assert left["why"] == "policy `control` (built-in:12) says leave"
    assert (idle["state"], idle["app_cpu"], idle["pid"]) == ("left", None, None)
    assert rows("state=local") == [local]
    assert rows("all=1&comm=sshd") == [local, left]
    assert rows("all=1&nic=eth1") == []


def test_queues(daemon: Serving) -> None:
    rows = get(daemon, "/v1/queues")["queues"]
    assert [(row["nic"], row["queue"]) for row in rows] == [
        (nic, queue) for nic in ("lab:lab", "eth1") for queue in range(4)
    ]
    assert rows[3] == {
        "nic": "lab:lab", "queue": 3, "napi_id": 8196, "irq": None, "threaded": True, "pid": 903,
        "held_by": "its NAPI thread", "reception": None,
        "reception_wanted": {"mode": "leave", "timeout_ns": 0, "polls": 0, "limit_ns": 0,
                             "rule": None},
        "reception_why_not": None, "reception_auto": None, "cpu": 3, "owner": None,
        "allowed_cpus": None, "filters": 3,
        "packets": 30, "bytes": 4500, "by_filter": 21, "by_rss": 9,
        "read_ns": None,
    }  # fmt: skip
    assert len(get(daemon, "/v1/queues?nic=eth1")["queues"]) == 4


def test_nics(daemon: Serving) -> None:
    lab, eth1 = get(daemon, "/v1/nics")["nics"]
    assert (lab["nic"], lab["armed"], lab["up"], lab["driver"]) == ("lab:lab", True, True, "lab")
    assert (lab["filters"], lab["filters_ours"], lab["filter_slots"]) == (4, 1, 4096)
    assert len(lab["rss"]["table"]) == 128
    assert (eth1["nic"], eth1["armed"]) == ("eth1", False)
    assert (lab["method"], lab["paused"], lab["filters_foreign"]) == ("filters", False, 3)
    assert lab["caps"]["flow_types"] is None
    assert lab["device"]["node"] is None


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
    assert nic["device"] == {
        "driver": "igb", "bus": "0000:01:00.0", "node": 1, "channels": 4, "channels_max": 8,
        "ring_size": 256, "ring_max": 4096, "rx_usecs": 3, "adaptive_rx": True, "ntuple": False,
        "rss_contexts": 0, "channels_apart": False, "ntuple_fixed": False,
    }  # fmt: skip
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


def test_topology_says_which_queues_a_cpu_serves(daemon: Serving) -> None:
    answer = get(daemon, "/v1/topology")
    cpus = answer["cpus"]
    assert len(cpus) == 8
    assert (cpus[3]["isolated"], cpus[3]["nohz_full"]) == (False, False)
    assert answer["nodes"][1] == {
        "node": 1, "cpus": [4, 5, 6, 7], "distances": {"0": 21, "1": 10}, "nics": [],
    }  # fmt: skip
    assert cpus[3]["smt"] == [2, 3]
    assert cpus[3]["queues"] == [{"nic": "lab:lab", "queue": 3}, {"nic": "eth1", "queue": 3}]
    assert cpus[4]["queues"] == []


def test_events_after(daemon: Serving) -> None:
    page = get(daemon, "/v1/events?limit=1000")
    assert [row["seq"] for row in page["events"]] == list(range(1, 1001))
    rest = get(daemon, f"/v1/events?after={page['next']}&limit=1000")
    assert [row["seq"] for row in rest["events"]] == list(range(1001, 1501))
    end = get(daemon, f"/v1/events?after={rest['next']}")
    assert (end["events"], end["next"]) == ([], 1500)
    assert page["events"][0]["flow"] == "tcp 10.0.0.2:5201 <- 10.9.0.1:1"
    assert page["events"][0]["time"] == "2023-11-14T22:13:20.500+00:00"


@pytest.mark.parametrize(
    "text",
    ["tcp 10.0.0.2:5201 10.9.0.1:40000", "tcp 10.0.0.2:5201 <- 10.9.0.1:40000",
     "10.0.0.2:5201-10.9.0.1:40000", ":40000", "40000", "1040000", "cookie:1040000"],
)  # fmt: skip
def test_explain_a_flow_however_it_is_named(daemon: Serving, text: str) -> None:
    answer = get(daemon, f"/v1/explain?flow={quote(text)}")
    assert answer["flow"]["cookie"] == 1_040_000
    assert answer["verdict"] == "Steered and verified: its packets arrive on CPU 3."
    assert len(answer["chain"]) == 5
    assert answer["advice"] is None


def test_explain_a_flow_that_is_not_there(daemon: Serving) -> None:
    text = quote("tcp 10.0.0.2:5201 10.9.0.1:40013")
    answer = get(daemon, f"/v1/explain?flow={text}")
    assert answer["flow"] is None
    assert "lab:lab: no filter catches it; RSS sends it to queue 1." in answer["chain"]
    nothing = get(daemon, "/v1/explain?flow=cookie:77")
    assert nothing["flow"] is None
    assert "cookie:77" in nothing["verdict"]


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


def test_cpu_time(daemon: Serving) -> None:
    assert get(daemon, "/v1/cpu-time") == {
        "read_ns": 7 * 10**9,
        "cpus": [
            {"cpu": 0, "busy_ns": 5 * 10**9, "softirq_ns": 10**9},
            {"cpu": 1, "busy_ns": 10**9, "softirq_ns": 0},
        ],
        "napi_threads": [{"nic": "lab:lab", "queue": 0, "cpu": 0, "ran_ns": 2 * 10**9}],
    }


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
