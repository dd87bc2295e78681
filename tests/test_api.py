# SPDX-License-Identifier: GPL-2.0-or-later
"""The API over its real Unix socket: asked with curl, as an operator would."""

from __future__ import annotations

import json
import os
import select
import socket
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.decide.slots import FlowSlots
from atfnd.errors import OperatorError
from atfnd.model import FlowState
from tests.published import Published, Serving, flow, key, serving
from tests.wait import until

KEYS = [
    *("proto", "local", "remote", "pid", "tid", "comm", "app_cpu", "rx_queue", "rx_cpu"),
    *("target_queue", "target_cpu", "placed", "state", "rule", "policy", "why"),
    *("nic", "cookie", "bytes", "age_s", "moved_s"),
]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    source = Published()
    for n in range(3):
        state = FlowState.STEERED if n < 2 else FlowState.OBSERVED
        source.table.put(key(40_000 + n), replace(flow(40_000 + n, state), location=100 + n))
    with serving(tmp_path / "atfnd.sock", source) as running:
        yield running


def curl(daemon: Serving, path: str, *options: str) -> tuple[int, str, str]:
    """Status, content type and body."""
    done = subprocess.run(
        ["curl", "-sS", "--unix-socket", str(daemon.socket), "-o", "-", "-w",
         "\n%{http_code} %{content_type}", *options, f"http://atfnd{path}"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    body, _, last = done.stdout.rpartition("\n")
    status, content_type = last.split(" ", 1)
    return int(status), content_type, body


def get(daemon: Serving, path: str, *options: str) -> Any:
    status, content_type, body = curl(daemon, path, *options)
    assert (status, content_type.split(";")[0]) == (200, "application/json"), body
    return json.loads(body)


def refusal(daemon: Serving, path: str, *options: str) -> tuple[int, dict[str, str | None]]:
    status, content_type, body = curl(daemon, path, *options)
    assert content_type.split(";")[0] == "application/json"
    answer = json.loads(body)
    assert answer.keys() == {"error", "hint"}
    assert answer["error"]
    return status, answer


# What is there


def test_status(daemon: Serving) -> None:
    status = get(daemon, "/v1/status")
    assert status["observer"] == "bpf"
    assert status["armed"] == ["lab:lab"]
    assert status["table_entries"] == 3
    assert status["t_delete_s"] == 30
    assert status["flows_by_state"] == {"steered": 2, "observed": 1}
    assert status["locality"] == 0.995
    assert status["uptime_s"] > 0


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
    assert (first["state"], first["rule"], first["cookie"]) == ("steered", 100, 1_040_000)


def test_placed_is_what_was_observed(daemon: Serving) -> None:
    def change() -> None:
        table = daemon.source.table
        table.put(key(40_000), replace(flow(40_000), rx_cpu=None))
        table.put(key(40_001), replace(flow(40_001), rx_cpu=1))
        table.put(key(40_002), replace(flow(40_002), target_cpu=None, thread=None))

    daemon.do(change)
    rows = get(daemon, "/v1/flows")["flows"]
    assert [row["placed"] for row in rows] == [None, False, None]
    assert rows[2]["pid"] is None


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("state=steered", 2),
        ("state=observed", 1),
        ("nic=lab:lab", 3),
        ("nic=eth1", 0),
        ("pid=4120", 3),
        ("pid=4121", 0),
        ("comm=iperf3", 3),
        ("comm=ip*", 3),
        ("comm=nginx", 0),
        ("state=steered&nic=lab:lab&pid=4120&comm=iperf?", 2),
        ("limit=2", 2),
    ],
)
def test_flow_filters(daemon: Serving, query: str, count: int) -> None:
    assert len(get(daemon, f"/v1/flows?{query}")["flows"]) == count


def test_queues(daemon: Serving) -> None:
    rows = get(daemon, "/v1/queues")["queues"]
    assert [(row["nic"], row["queue"]) for row in rows] == [
        (nic, queue) for nic in ("lab:lab", "eth1") for queue in range(4)
    ]
    assert rows[3] == {
        "nic": "lab:lab", "queue": 3, "napi_id": 8196, "irq": None, "threaded": True, "pid": 903,
        "cpu": 3, "rules": 3, "packets": 30, "bytes": 4500, "by_rule": 21, "by_rss": 9,
    }  # fmt: skip
    assert len(get(daemon, "/v1/queues?nic=eth1")["queues"]) == 4


def test_nics(daemon: Serving) -> None:
    lab, eth1 = get(daemon, "/v1/nics")["nics"]
    assert (lab["nic"], lab["armed"], lab["up"], lab["driver"]) == ("lab:lab", True, True, "lab")
    assert (lab["rules"], lab["rules_ours"], lab["rule_slots"]) == (4, 1, 4096)
    assert len(lab["rss"]["table"]) == 128
    assert (eth1["nic"], eth1["armed"]) == ("eth1", False)


def test_rules_in_pages(daemon: Serving) -> None:
    first = get(daemon, "/v1/rules?nic=lab:lab&limit=3")
    assert [row["location"] for row in first["rules"]] == [9, 100, 101]
    assert [row["ours"] for row in first["rules"]] == [False, True, False]
    assert first["rules"][1]["match"] == "tcp from 10.9.0.1:40000 to 10.0.0.2:5201"
    rest = get(daemon, f"/v1/rules?nic=lab:lab&limit=3&cursor={first['next']}")
    assert [row["location"] for row in rest["rules"]] == [102]
    assert rest["next"] is None


def test_topology_says_which_queues_a_cpu_serves(daemon: Serving) -> None:
    cpus = get(daemon, "/v1/topology")["cpus"]
    assert len(cpus) == 8
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
    assert "lab:lab: no rule catches it; RSS sends it to queue 1." in answer["chain"]
    nothing = get(daemon, "/v1/explain?flow=cookie:77")
    assert nothing["flow"] is None
    assert "cookie:77" in nothing["verdict"]


def test_explain_an_ambiguous_port_lists_the_candidates(daemon: Serving) -> None:
    status, answer = refusal(daemon, "/v1/explain?flow=5201")
    assert status == 400
    assert answer["hint"] is not None
    assert "cookie:1040001 (tcp 10.0.0.2:5201 <- 10.9.0.1:40001)" in answer["hint"]


def test_arm_and_disarm(daemon: Serving) -> None:
    assert get(daemon, "/v1/nics/eth1/arm", "-X", "POST") == {"nic": "eth1", "armed": True}
    assert get(daemon, "/v1/status")["armed"] == ["lab:lab", "eth1"]
    assert get(daemon, "/v1/nics/lab:lab/disarm", "-XPOST") == {"nic": "lab:lab", "armed": False}
    assert get(daemon, "/v1/nics/lab%3Alab/arm", "-XPOST") == {"nic": "lab:lab", "armed": True}


# Bad input and refusals


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 404),
        ("/v1", 404),
        ("/v2/status", 404),
        ("/v1/flows/", 404),
        ("/v1/status?x=1", 400),
        ("/v1/flows?limit=0", 400),
        ("/v1/flows?limit=1001", 400),
        ("/v1/flows?limit=ten", 400),
        ("/v1/flows?limit=", 400),
        ("/v1/flows?limit=1&limit=2", 400),
        ("/v1/flows?limit=1e3", 400),
        ("/v1/flows?limit=%D9%A3", 400),
        ("/v1/flows?cursor=-1", 400),
        ("/v1/flows?cursor=99999999999999999999999", 400),
        ("/v1/flows?pid=0", 400),
        ("/v1/flows?state=happy", 400),
        ("/v1/flows?nic=nope", 404),
        ("/v1/flows?sort=pid", 400),
        ("/v1/explain", 400),
        ("/v1/explain?flow=", 400),
        ("/v1/explain?flow=nonsense", 400),
        ("/v1/explain?flow=tcp+1.2.3.4:5+::1:6", 400),
        ("/v1/rules", 400),
        ("/v1/rules?nic=nope", 404),
        ("/v1/queues?nic=nope", 404),
        ("/v1/events?after=-1", 400),
    ],
)
def test_bad_requests(daemon: Serving, path: str, status: int) -> None:
    assert refusal(daemon, path)[0] == status
    assert daemon.source.views == Published().views


@pytest.mark.parametrize(
    ("path", "options", "status"),
    [
        ("/v1/status", ("-XPOST",), 405),
        ("/v1/flows", ("-XDELETE",), 405),
        ("/v1/nics/eth1/arm", (), 405),
        ("/v1/nics/nope/arm", ("-XPOST",), 404),
        ("/v1/nics/eth1/explode", ("-XPOST",), 404),
        ("/v1/nics/eth1/arm?force=1", ("-XPOST",), 400),
        ("/v1/nics/eth1/arm", ("-d", "{}"), 400),
        ("/v1/nics/eth1/arm", ("-d", "x" * 5000), 413),
        ("/v1/nics/eth1/arm", ("-d", "x" * 5000, "-H", "Transfer-Encoding: chunked"), 413),
        ("/v1/status", ("-XGET", "-d", "x"), 400),
    ],
)
def test_bad_methods_names_and_bodies(
    daemon: Serving, path: str, options: tuple[str, ...], status: int
) -> None:
    got, answer = refusal(daemon, path, *options)
    assert got == status
    assert answer["hint"]
    assert daemon.source.views == Published().views


def test_405_says_what_is_allowed(daemon: Serving) -> None:
    _, _, text = curl(daemon, "/v1/nics/eth1/arm", "-i")
    assert "Allow: POST" in text.replace("\r", "")


def test_what_the_daemon_and_the_kernel_refuse(daemon: Serving) -> None:
    def add() -> None:
        lab = daemon.source.views[0]
        none = replace(lab.caps, rules=False)
        daemon.source.views += [replace(lab, name="plain0", caps=none), replace(lab, name="stuck0")]

    daemon.do(add)
    assert refusal(daemon, "/v1/nics/plain0/arm", "-XPOST") == (
        409,
        {"error": "plain0 has no filters", "hint": "use another interface"},
    )
    status, answer = refusal(daemon, "/v1/nics/stuck0/disarm", "-XPOST")
    assert status == 409
    assert answer["error"] == (
        "the kernel refused to disarm stuck0: Operation not permitted (EPERM)"
    )


def test_garbage_and_silence_do_not_disturb_others(daemon: Serving) -> None:
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as garbage:
        silent.connect(str(daemon.socket))
        garbage.connect(str(daemon.socket))
        garbage.sendall(b"\x16\x03\x01 not http\r\n\r\n")
        assert b"400" in garbage.recv(4096)
        assert get(daemon, "/v1/status")["pid"] == 4242


def test_a_client_that_leaves_in_the_middle_does_not_disturb_others(daemon: Serving) -> None:
    daemon.do(lambda: daemon.source.fill(range(1000)))
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(daemon.socket))
        client.sendall(b"GET /v1/flows?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert client.recv(100)
    assert len(get(daemon, "/v1/flows?limit=1000")["flows"]) == 1000


# Paging


def walk(daemon: Serving, between: Any, query: str = "") -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        page = get(daemon, f"/v1/flows?limit=1000&cursor={cursor}{query}")
        assert len(page["flows"]) <= 1000
        rows += page["flows"]
        cursor = page["next"]
        daemon.do(between)
    return rows


def test_paging_is_complete_while_flows_come_and_go(daemon: Serving) -> None:
    """Of 5,000 flows 4,000 stay; the others go, and as many come, between every two pages."""
    source = daemon.source
    stay = {n for n in range(50_000, 55_000) if n % 5}
    go = iter([n for n in range(50_000, 55_000) if n not in stay])
    come = iter(range(20_000, 30_000))

    def fill() -> None:
        for n in range(3):
            source.table.drop(key(40_000 + n))
        source.fill(range(50_000, 55_000))

    def churn() -> None:
        for _ in range(150):
            source.table.drop(key(next(go)))
            source.table.put(key(next(come)), flow(20_000))
            source.table.put(key(next(come)), flow(20_001))

    daemon.do(fill)
    cookies = [row["cookie"] - 1_000_000 for row in walk(daemon, churn)]
    seen = [n for n in cookies if n >= 50_000]
    assert len(seen) == len(set(seen))
    assert stay <= set(seen)


def test_a_filter_pages_through_the_whole_table(daemon: Serving) -> None:
    def fill() -> None:
        for n in range(3000):
            state = FlowState.OVERFLOW if n % 100 == 0 else FlowState.STEERED
            daemon.source.table.put(key(n), flow(n, state))

    daemon.do(fill)
    assert len(walk(daemon, lambda: None, "&state=overflow")) == 30


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 20), st.booleans())), st.integers(1, 7))
def test_slots_keep_their_flow(changes: list[tuple[int, bool]], step: int) -> None:
    """Against a plain set: who stays from the first page to the last is met exactly once."""
    slots: FlowSlots[int] = FlowSlots()
    for n in range(10):
        slots.put(n, flow(n))
    present, always = set(range(10)), set(range(10))
    met: list[int] = []
    at = 0
    work = iter(changes)
    while at < len(slots):
        met += [f.key.remote_port for f in slots[at : at + step] if f is not None]
        at += step
        n, add = next(work, (0, True))
        if add:
            slots.put(n, flow(n))
            present.add(n)
        elif n in present:
            slots.drop(n)
            present.discard(n)
            always.discard(n)
    assert {f.key.remote_port for f in slots if f is not None} == present
    assert all(met.count(n) == 1 for n in always)
    with pytest.raises(KeyError):
        slots.drop(99)


def test_slots_are_used_again() -> None:
    slots: FlowSlots[int] = FlowSlots()
    for n in range(1000):
        slots.put(n, flow(n))
        slots.drop(n)
    assert len(slots) <= 1


# The socket file


def test_the_socket_is_for_owner_and_group(daemon: Serving) -> None:
    assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o660


def test_the_socket_is_gone_after_a_stop(tmp_path: Path) -> None:
    with serving(tmp_path / "new" / "atfnd.sock") as running:
        assert running.socket.is_socket()
    assert not running.socket.exists()


def test_a_stop_leaves_a_successors_socket(tmp_path: Path) -> None:
    path = tmp_path / "atfnd.sock"
    with serving(path):
        path.unlink()
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
    assert path.is_socket()


def test_a_stale_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "atfnd.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with serving(path) as running:
        assert get(running, "/v1/status")["pid"] == 4242


def test_a_second_daemon_is_refused_and_the_first_goes_on(daemon: Serving) -> None:
    with (
        pytest.raises(OperatorError, match="a daemon already answers") as caught,
        serving(daemon.socket),
    ):
        pass
    assert caught.value.exit_code == 2
    assert get(daemon, "/v1/status")["pid"] == 4242


@pytest.mark.parametrize("name", ["file", "directory", "far/away/atfnd.sock", "x" * 120])
def test_a_path_that_cannot_be_a_socket(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("precious")
    (tmp_path / "directory").mkdir()
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(OperatorError) as caught, serving(tmp_path / name):
        pass
    assert caught.value.exit_code == 2
    assert sorted(os.listdir(tmp_path)) == before
    assert (tmp_path / "file").read_text() == "precious"


def test_a_stop_ends_idle_connections(tmp_path: Path) -> None:
    client = socket.socket(socket.AF_UNIX)
    with client:
        with serving(tmp_path / "atfnd.sock") as running:
            client.connect(str(running.socket))
            client.setblocking(False)
            until(lambda: get(running, "/v1/status"), "an answer while a client is idle")
        client.settimeout(10)
        assert not client.recv(1)


# Clients that do not get on


def test_a_client_that_sends_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.serve.http.READ_S", 0.1)
    with serving(tmp_path / "atfnd.sock") as running, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(running.socket))
        client.sendall(b"GET /v1/status HTTP/1.1\r\nHost:")
        assert not client.recv(1)


def test_a_body_that_does_not_come_is_408(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atfnd.serve.http.READ_S", 0.1)
    with serving(tmp_path / "atfnd.sock") as running, socket.socket(socket.AF_UNIX) as client:
        client.settimeout(30)
        client.connect(str(running.socket))
        head = b"POST /v1/nics/eth1/arm HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
        client.sendall(head)
        assert client.recv(4096).startswith(b"HTTP/1.1 408")
        assert not running.source.views[1].armed


def test_a_client_that_takes_nothing_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atfnd.serve.api.WRITE_S", 0.1)
    source = Published()
    for n in range(1000):
        source.table.put(key(n), replace(flow(n), why="because " * 100))
    with serving(tmp_path / "atfnd.sock", source) as running:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(running.socket))
            client.sendall(b"GET /v1/flows?limit=1000 HTTP/1.1\r\nHost: x\r\n\r\n")
            hung_up = select.poll()
            hung_up.register(client, select.POLLHUP)
            until(lambda: hung_up.poll(0), "the server hangs up")
        assert get(running, "/v1/status")["pid"] == 4242
