# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnctl as its own process against the real server: every verb, in both forms. And what moves and
findings come to, in one line of words."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from atfnd.ctl.tables import moves, summed
from atfnd.model import Cpu, Survey, Topology
from atfnd.model.reason import Code
from tests.serve.asking import atfnctl, lines
from tests.serve.published import Serving, flow
from tests.serve.shown import found


@pytest.mark.parametrize(
    ("verb", "count", "header", "row"),
    [
        ("flows", 3,
         "PROTO LOCAL REMOTE TID COMM APP-CPU RX-QUEUE RX-CPU TARGET PLACED STATE FILTER "
         "BYTES AGE NIC RULE HABIT HOME WHY",
         "tcp 10.0.0.2:5201 10.9.0.1:40000 4121 iperf3 3 3 3 3 yes steered 100 117.7M"),
        ("queues", 8, "NIC QUEUE NAPI IRQ THREADED PID CPU OWNER ALLOWED FILTERS PACKETS BY-FILTER "
         "BY-RSS RECEPTION HELD-BY",
         "lab:lab 0 8193 - yes 900 0 - - 1 0 0 0 - its NAPI thread"),
        ("nics", 2, "NIC STATE UP DRIVER CLASS PROBED NODE QUEUES MOST FILTERS OURS FOREIGN SLOTS "
         "RING DROPS CONFLICTS HASH NETNS METHOD WHY",
         "lab:lab armed yes lab K1 yes - 4 - 4 1 3 4096 256 5 0 known /run/netns/lab-host filters"),
        ("filters", 4, "NIC LOCATION QUEUE HITS OURS MATCH", "lab:lab 9 0 7 no any from * to *:22"),
        ("topology", 8, "CPU ONLINE ISOLATED NODE PACKAGE CORE SMT LLC QUEUES",
         "0 yes no 0 0 0 0,1 0,1,2,3 lab:lab/0,eth1/0"),
    ],
)  # fmt: skip
def test_tables_and_their_json(
    daemon: Serving, verb: str, count: int, header: str, row: str
) -> None:
    out = lines(daemon, verb)
    assert out[0].split() == header.split()
    assert out[1].split()[: len(row.split())] == row.split()
    rows = json.loads("\n".join(lines(daemon, verb, "--json")))
    assert [type(each) for each in rows] == [dict] * count


def test_status(daemon: Serving) -> None:
    reported = {line[:11].strip(): line[11:].strip() for line in lines(daemon, "status")}
    assert reported["observer"] == "bpf: tracepoints attached"
    assert reported["armed"] == "lab:lab"
    assert reported["table"] == "3 of 8192 flows (0.0%), t_delete 30 s"
    assert reported["flows"] == "2 steered, 1 observed"
    assert reported["locality"] == "99.50% of bytes processed on the CPU that read them, last 10 s"
    assert reported["since start"] == "94.44% of 900 while armed, 50.00% of 100 while not armed"
    assert reported["actions"] == "17 applied, 1 refused"
    guard = "lab:lab: watching, CPU per byte -4.1% by 12 pairs of slots"
    assert reported["guard"] == guard
    assert reported["machine"] == "netdev-budget: 2, set, was 300"
    assert reported["events lost"] == "0, 1 re-syncs"
    assert "moves" not in reported  # there was none: a line of zeros says nothing
    assert reported["own CPU"] == "1.25% of a core, may use 1.00%; over: 3 flows wait for it"
    assert json.loads("\n".join(lines(daemon, "status", "--json")))["overflow"] == 3


def test_gain(daemon: Serving) -> None:
    out = [" ".join(line.split()) for line in lines(daemon, "gain")]
    off = "OFF-CPU OFF-CORE OFF-LLC OFF-NODE"
    assert {
        "looked for 10.0 s; 8 CPUs, 4 cores, 2 last-level caches, 2 NUMA nodes",
        f"APPLICATION PROCESSES PINNED SETTLED WANDERING UNKNOWN READ {off}",
        "iperf3 1 1 0 0 0 1.3K 54% 23% 23% 23%",
        f"TID PID APPLICATION HABIT BY HOME CPUS CALLS READ {off}",
        "4121 4120 iperf3 pinned affinity cpu 3 240 1.3K 54% 23% 23% 23%",
        f"NIC ARMED METHOD PROBED READ {off}",
        "lab:lab yes filters yes 950 33% 33% 33% 33%",
        "lab:lab: read off its CPU: 33% by pinned threads",
        "lab:lab: 50 bytes of unconnected UDP: no CPU is known",
        "lab:lab: to be done now: 3 filters, 1 queue to another CPU, 2 settings; by filters:",
        "eth1: arming would begin with: 3 filters, 1 queue to another CPU, 2 settings; by filters:",
        "9 bytes that were read are not in this: no room",
    } <= set(out)
    answer = json.loads("\n".join(lines(daemon, "gain", "eth1", "--for", "5s", "--json")))
    assert (answer["seconds"], [nic["nic"] for nic in answer["nics"]]) == (5, ["eth1"])
    assert [thread["tid"] for thread in answer["threads"]] == [7, 4121]


def test_pairs(daemon: Serving) -> None:
    out = [" ".join(line.split()) for line in lines(daemon, "pairs", "--for", "2s")]
    assert out == [
        "IN RXQ OUT TXQ PPS BYTES/S CPU TX-CPU DISTANCE",
        "lab:lab 0 eth1 0 3000 1.4M 0 2 LLC",
        "lab:lab 3 eth1 1 1500 732.4K 3 3 same CPU",
        "eth1 0 interface 7 0 500 31.2K 2 - -",
        "30% of the packets are received and sent on one CPU, of 10% it is not known",
        "lab:lab to eth1: gateway: channels of one number are on one CPU",
        "namespace wire: 500 packets/s forwarded, no interface there is watched",
        "namespace 8: 50 packets/s forwarded, no interface there is watched",
        "9 packets are not in this: no room",
    ]
    answer = json.loads("\n".join(lines(daemon, "pairs", "lab:lab", "--json")))
    assert [(row["egress"], row["cpu"]) for row in answer["pairs"]] == [("eth1", 0), ("eth1", 3)]
    assert answer["elsewhere"] == []


def test_pairs_where_nothing_is_forwarded(daemon: Serving) -> None:
    daemon.do(lambda: setattr(daemon.source, "forwarded", ()))
    done = atfnctl(daemon, "pairs")
    assert (done.returncode, done.stderr) == (0, "no packet was forwarded in 2.0 s\n")
    daemon.do(lambda: setattr(daemon.source, "unseen", "the kernel refuses the program"))
    assert lines(daemon, "pairs") == ["not counted: the kernel refuses the program"]


def test_gain_says_what_is_not_known(daemon: Serving) -> None:
    def nothing_is_said() -> None:
        daemon.source.surveyed = Survey((), 0)
        daemon.source.cpus = Topology((Cpu(0, True, None, None, None, (), ()),) * 2)

    daemon.do(nothing_is_said)
    done = atfnctl(daemon, "gain", "eth1")
    assert done.stderr == "no application read data meanwhile\nno thread read data meanwhile\n"
    out = done.stdout.splitlines()
    assert out[0].endswith("; 2 CPUs, cores not known, last-level caches not known, 1 NUMA node")
    assert [line.split() for line in out if line.startswith("eth1 ")] == [
        ["eth1", "no", "filters", "yes", "0", "-", "-", "-", "-"]
    ]
    daemon.do(lambda: setattr(daemon.source, "unseen", "nobody sees it"))
    assert lines(daemon, "gain") == ["not measured: nobody sees it"]


def test_explain(daemon: Serving) -> None:
    out = lines(daemon, "explain", "tcp", "10.0.0.2:5201", "10.9.0.1:40000")
    assert out[2] == "  lab:lab: filter 100 (ours, 7 hits) sends it to queue 3."
    assert out[-1] == "=> Steered and verified: its packets arrive on CPU 3."
    answer = json.loads("\n".join(lines(daemon, "explain", ":40000", "--json")))
    assert answer["flow"]["cookie"] == 1_040_000
    out = lines(daemon, "explain", "cookie:1040002")
    assert out[-1].startswith("=> Only observed")
    daemon.do(lambda: daemon.source.table.put(flow(7)._replace(rx_cpu=1, rx_queue=1)))
    assert lines(daemon, "explain", ":7")[-1].startswith("do: ")
    out = lines(daemon, "explain", ":5201")
    assert [line.split()[2] for line in out[1:4]] == [
        "10.9.0.1:40000",
        "10.9.0.1:40001",
        "10.9.0.1:40002",
    ]
    assert out[-2] == "=> 4 flows have :5201."


def test_events(daemon: Serving) -> None:
    out = lines(daemon, "events")
    assert len(out) == 1500
    assert out[1].split()[3:6] == ["insert", "lab:lab", "tcp"]
    assert out[1].endswith("#2  (why)")
    rows = json.loads("\n".join(lines(daemon, "events", "--after", "1490", "--json")))
    assert [row["seq"] for row in rows] == list(range(1491, 1501))


def test_arm_disarm_pause_and_resume(daemon: Serving) -> None:
    assert lines(daemon, "arm", "eth1") == ["eth1 is armed"]
    assert daemon.source.views[1].armed
    answer = json.loads("\n".join(lines(daemon, "disarm", "eth1", "--json")))
    assert answer == {"nic": "eth1", "armed": False, "paused": False}
    assert lines(daemon, "disarm", "lab:lab") == ["lab:lab is disarmed"]
    assert not any(nic.armed for nic in daemon.source.views)
    assert lines(daemon, "pause", "lab:lab") == ["lab:lab is paused: nothing of ours is in it"]
    assert lines(daemon, "nics")[1].split()[1] == "paused"
    answer = json.loads("\n".join(lines(daemon, "resume", "lab:lab", "--json")))
    assert answer == {"nic": "lab:lab", "armed": True, "paused": False}


def test_nodes_come_below_the_cpus(daemon: Serving) -> None:
    def put_on_node_1() -> None:
        nic = daemon.source.views[1]
        daemon.source.views[1] = replace(nic, device=replace(nic.device, node=1))

    daemon.do(put_on_node_1)
    table = lines(daemon, "topology")[-3:]
    assert [line.split() for line in table] == [
        ["NODE", "CPUS", "DISTANCES", "NICS"],
        ["0", "0,1,2,3", "10,21", "-"],
        ["1", "4,5,6,7", "21,10", "eth1"],
    ]


# Many flows, filters, limits


def test_all_pages_and_limits(daemon: Serving) -> None:
    daemon.do(lambda: daemon.source.fill(range(2500)))
    rows = json.loads(atfnctl(daemon, "flows", "--json").stdout)
    assert len({row["cookie"] for row in rows}) == len(rows) == 2503
    assert len(json.loads(atfnctl(daemon, "flows", "--json", "--limit", "1200").stdout)) == 1200
    some = atfnctl(daemon, "flows", "--limit", "5")
    assert len(some.stdout.splitlines()) == 6
    assert some.stderr == "the first 5; more with --limit, all with --json\n"
    assert len(atfnctl(daemon, "flows").stdout.splitlines()) == 201
    assert len(atfnctl(daemon, "filters", "--limit", "2").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--state", "steered"], 2),
        (["--nic", "eth1"], 0),
        (["--pid", "4120", "--comm", "iperf*"], 3),
        (["--comm", "nginx"], 0),
    ],
)
def test_filters(daemon: Serving, words: list[str], count: int) -> None:
    assert len(json.loads("\n".join(lines(daemon, "flows", "--json", *words)))) == count


def test_flows_without_an_entry(daemon: Serving) -> None:
    daemon.do(lambda: daemon.source.found.extend((found(7), found(8)._replace(rx_cpu=3))))
    assert len(json.loads("\n".join(lines(daemon, "flows", "--json")))) == 3
    assert len(json.loads("\n".join(lines(daemon, "flows", "--json", "--all")))) == 5
    assert len(atfnctl(daemon, "flows", "--all", "--limit", "4").stdout.splitlines()) == 5
    (row,) = lines(daemon, "flows", "--state", "local")[1:]
    assert row.split()[3:11] == ["27960", "sshd", "1", "1", "1", "1", "yes", "local"]
    assert row.split()[14:19] == ["lab:lab", "-", "unknown", "-", "its"]
    assert len(json.loads("\n".join(lines(daemon, "top", "--json", "--all")))["flows"]) == 5


def test_a_name_cannot_drive_the_terminal(daemon: Serving) -> None:
    thread = flow(1).thread
    assert thread is not None
    evil = flow(1)._replace(
        thread=replace(thread, comm="\x1b[2J[red]\r"), why=Code.KERNEL("\x1b]0;x\x07")
    )
    daemon.do(lambda: daemon.source.table.put(evil))
    for words in (("flows",), ("explain", ":1"), ("top", "--interval", "0.1")):
        out = atfnctl(daemon, *words).stdout
        assert "?[2J[red]?" in out
        assert "\x1b" not in out
        assert "\r" not in out


# What moves and findings come to


def ends(*counted: tuple[int, str, str], late: int = 0) -> dict[str, Any]:
    rows = [{"count": n, "mechanism": means, "verdict": how} for n, means, how in counted]
    return {"moves": rows, "late_packets": late}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (ends(), "0 in order, 0 postponed, 0 reordered"),
        (
            ends((20, "hold", "proven"), (15, "birth", "proven"), (197, "none", "deferred")),
            "35 in order (20 by hold, 15 by birth), 197 postponed, 0 reordered",
        ),
        (
            ends((1, "gap", "violated"), (2, "hold", "unproven"), (9, "none", "refused"), late=6),
            "0 in order, 0 postponed, 1 reordered (6 packets late), 9 refused, 2 not proven",
        ),
    ],
)
def test_moves_by_how_they_ended(status: dict[str, Any], said: str) -> None:
    assert moves(status) == said


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ("ok note", "0 warnings, 0 blockers"),
        ("warning warning", "2 warnings, 0 blockers"),
        ("blocker", "0 warnings, 1 blocker: nothing can be steered before these are removed"),
    ],
)
def test_findings_by_how_much_they_matter(levels: str, said: str) -> None:
    assert summed([{"level": level} for level in levels.split()]) == said
