# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnctl as its own process against the real server: every verb, both forms, every exit code."""

from __future__ import annotations

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.model import FlowState
from tests.published import Published, Serving, flow, key, serving
from tests.wait import until

ATFNCTL = str(Path(sys.executable).parent / "atfnctl")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    source = Published()
    for n in range(3):
        state = FlowState.STEERED if n < 2 else FlowState.OBSERVED
        source.table.put(key(40_000 + n), replace(flow(40_000 + n, state), location=100 + n))
    with serving(tmp_path / "atfnd.sock", source) as running:
        yield running


def environment(daemon: Serving | Path) -> dict[str, str]:
    path = daemon if isinstance(daemon, Path) else daemon.socket
    hidden = ("COLUMNS", "LINES")
    return {k: v for k, v in os.environ.items() if k not in hidden} | {"ATFND_SOCKET": str(path)}


def atfnctl(daemon: Serving | Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ATFNCTL, *words], env=environment(daemon), capture_output=True, text=True, timeout=60
    )


def lines(daemon: Serving, *words: str) -> list[str]:
    done = atfnctl(daemon, *words)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return [line.rstrip() for line in done.stdout.splitlines()]


# Every verb, as a table and as JSON


@pytest.mark.parametrize(
    ("verb", "header", "row"),
    [
        ("flows", "PROTO LOCAL REMOTE TID COMM APP-CPU RX-QUEUE RX-CPU TARGET PLACED STATE RULE "
         "BYTES AGE NIC POLICY WHY",
         "tcp 10.0.0.2:5201 10.9.0.1:40000 4121 iperf3 3 3 3 3 yes steered 100 117.7M"),
        ("queues", "NIC QUEUE NAPI IRQ THREADED PID CPU RULES PACKETS BY-RULE BY-RSS",
         "lab:lab 0 8193 - yes 900 0 1 0 0 0"),
        ("nics", "NIC ARMED UP DRIVER QUEUES RULES OURS SLOTS RING DROPS NETNS",
         "lab:lab yes yes lab 4 4 1 4096 256 5 /run/netns/lab-host"),
        ("rules", "NIC LOCATION QUEUE HITS OURS MATCH", "lab:lab 9 0 7 no any from * to *:22"),
        ("topology", "CPU ONLINE NODE PACKAGE CORE SMT LLC QUEUES",
         "0 yes 0 0 0 0,1 0,1,2,3 lab:lab/0,eth1/0"),
    ],
)  # fmt: skip
def test_tables(daemon: Serving, verb: str, header: str, row: str) -> None:
    out = lines(daemon, verb)
    assert out[0].split() == header.split()
    assert out[1].split()[: len(row.split())] == row.split()


@pytest.mark.parametrize(
    ("verb", "count"), [("flows", 3), ("queues", 8), ("nics", 2), ("rules", 4), ("topology", 8)]
)
def test_json_lists(daemon: Serving, verb: str, count: int) -> None:
    rows = json.loads("\n".join(lines(daemon, verb, "--json")))
    assert isinstance(rows, list)
    assert len(rows) == count
    assert all(isinstance(row, dict) for row in rows)


def test_status(daemon: Serving) -> None:
    told = {line[:11].strip(): line[11:].strip() for line in lines(daemon, "status")}
    assert told["observer"] == "bpf: tracepoints attached"
    assert told["armed"] == "lab:lab"
    assert told["table"] == "3 of 8192 flows (0.0%), t_delete 30 s"
    assert told["flows"] == "2 steered, 1 observed"
    assert told["locality"] == "99.50% of packets on the application's core"
    assert told["actions"] == "17 applied, 1 refused"
    assert told["events lost"] == "0, 1 re-syncs"
    assert json.loads("\n".join(lines(daemon, "status", "--json")))["overflow"] == 3


def test_explain(daemon: Serving) -> None:
    out = lines(daemon, "explain", "tcp", "10.0.0.2:5201", "10.9.0.1:40000")
    assert out[2] == "  lab:lab: rule 100 (ours, 7 hits) sends it to queue 3."
    assert out[-1] == "=> Steered and verified: its packets arrive on CPU 3."
    answer = json.loads("\n".join(lines(daemon, "explain", ":40000", "--json")))
    assert answer["flow"]["cookie"] == 1_040_000
    out = lines(daemon, "explain", "cookie:1040002")
    assert out[-1].startswith("=> Only observed")
    daemon.do(lambda: daemon.source.table.put(key(7), replace(flow(7), rx_cpu=1, rx_queue=1)))
    assert lines(daemon, "explain", ":7")[-1].startswith("do: ")


def test_events(daemon: Serving) -> None:
    out = lines(daemon, "events")
    assert len(out) == 1500
    assert out[1].split()[:5] == ["2", "2023-11-14T22:13:20.500+00:00", "insert", "lab:lab", "tcp"]
    assert out[1].endswith("#2  (why)")
    rows = json.loads("\n".join(lines(daemon, "events", "--after", "1490", "--json")))
    assert [row["seq"] for row in rows] == list(range(1491, 1501))
    assert lines(daemon, "events", "--nic", "eth1") == []
    assert json.loads("\n".join(lines(daemon, "events", "--nic", "eth1", "--json"))) == []


def test_arm_and_disarm(daemon: Serving) -> None:
    assert lines(daemon, "arm", "eth1") == ["eth1 is armed"]
    assert daemon.source.views[1].armed
    answer = json.loads("\n".join(lines(daemon, "disarm", "eth1", "--json")))
    assert answer == {"nic": "eth1", "armed": False}
    assert lines(daemon, "disarm", "lab:lab") == ["lab:lab is disarmed"]
    assert not any(nic.armed for nic in daemon.source.views)


def test_an_empty_table_is_a_header_and_an_empty_list(tmp_path: Path) -> None:
    with serving(tmp_path / "atfnd.sock") as running:
        assert len(lines(running, "flows")) == 1
        assert lines(running, "flows", "--json") == ["[]"]


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
    assert len(atfnctl(daemon, "rules", "--limit", "2").stdout.splitlines()) == 3


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


def test_a_name_cannot_drive_the_terminal(daemon: Serving) -> None:
    thread = flow(1).thread
    assert thread is not None
    evil = replace(thread, comm="\x1b[2J[red]\r")
    daemon.do(lambda: daemon.source.table.put(key(1), replace(flow(1), thread=evil)))
    out = atfnctl(daemon, "flows").stdout + atfnctl(daemon, "explain", ":1").stdout
    assert "?[2J[red]?" in out
    assert "\x1b" not in out
    assert "\r" not in out


# Exit codes


@pytest.mark.parametrize("words", [["tcp", "10.0.0.2:1", "10.9.0.1:2"], ["cookie:77"], [":9"]])
def test_1_the_answer_is_no(daemon: Serving, words: list[str]) -> None:
    done = atfnctl(daemon, "explain", *words)
    assert done.returncode == 1
    assert "=> " in done.stdout
    assert json.loads(atfnctl(daemon, "explain", *words, "--json").stdout)["flow"] is None


def test_1_the_daemon_refused(daemon: Serving) -> None:
    lab = daemon.source.views[0]
    plain = replace(lab, name="plain0", caps=replace(lab.caps, rules=False))
    daemon.do(lambda: daemon.source.views.append(plain))
    done = atfnctl(daemon, "arm", "plain0")
    assert done.returncode == 1
    assert done.stderr == "atfnd: plain0 has no filters\nhint: use another interface\n"


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["status", "extra"],
        ["status", "--nope"],
        ["flows", "--limit", "0"],
        ["flows", "--limit", "ten"],
        ["flows", "--pid", "-1"],
        ["flows", "--state", "happy"],
        ["flows", "--nic", "nope"],
        ["flows", "--watch", "--json"],
        ["flows", "--watch", "--interval", "0"],
        ["explain"],
        ["explain", "nonsense"],
        ["explain", ""],
        ["explain", "5201"],
        ["explain", "tcp", "10.0.0.2:5201"],
        ["rules", "--nic", "nope"],
        ["events", "--after", "-1"],
        ["arm"],
        ["arm", "nope"],
        ["arm", "../status"],
        ["disarm", "nope", "more"],
    ],
)
def test_2_usage_or_bad_input(daemon: Serving, words: list[str]) -> None:
    done = atfnctl(daemon, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr
    assert not done.stdout
    assert "Traceback" not in done.stderr
    assert daemon.source.views == Published().views


@pytest.mark.parametrize(
    "words",
    [["status"], ["flows"], ["flows", "--json"], ["flows", "--watch"], ["explain", ":1"],
     ["queues"], ["nics"], ["rules"], ["topology"], ["events"], ["events", "--follow"],
     ["arm", "eth1"], ["disarm", "eth1"]],
)  # fmt: skip
def test_3_daemon_unreachable(tmp_path: Path, words: list[str]) -> None:
    done = atfnctl(tmp_path / "none.sock", *words)
    assert done.returncode == 3
    message, hint = done.stderr.splitlines()
    assert message == f"atfnd: atfnd is not running: nothing listens on {tmp_path}/none.sock"
    assert "systemctl start atfnd" in hint


def test_3_a_socket_nobody_answers_on(tmp_path: Path) -> None:
    path = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert atfnctl(path, "status").returncode == 3
    (tmp_path / "file").touch()
    assert atfnctl(tmp_path / "file", "status").returncode == 3


def test_3_the_daemon_dies_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "dying.sock"
    with socket.socket(socket.AF_UNIX) as dying:
        dying.bind(str(path))
        dying.listen()

        def die() -> None:
            connection, _ = dying.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            connection.close()

        thread = threading.Thread(target=die)
        thread.start()
        done = atfnctl(path, "status")
        thread.join(10)
    assert done.returncode == 3
    assert done.stderr.startswith(f"atfnd: no answer from atfnd on {path}")


def test_the_socket_option_wins_over_the_environment(daemon: Serving, tmp_path: Path) -> None:
    done = atfnctl(tmp_path / "none.sock", "status", "--socket", str(daemon.socket))
    assert done.returncode == 0


# Streams


@pytest.mark.parametrize("words", [["flows", "--json"], ["flows", "--limit", "9999"], ["events"]])
def test_a_reader_that_has_had_enough(daemon: Serving, words: list[str]) -> None:
    daemon.do(lambda: daemon.source.fill(range(3000)))
    with subprocess.Popen(
        [ATFNCTL, *words], env=environment(daemon), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(10)
        process.stdout.close()
        complaints = process.stderr.read().decode()
        assert process.wait(30) == 0
    assert complaints.replace("the first 200; more with --limit, all with --json\n", "") == ""


class Stream:
    """atfnctl running: what it has written so far, until it is told Ctrl-C."""

    def __init__(self, daemon: Serving, *words: str, terminal: bool = False) -> None:
        self.text = b""
        read, write = pty.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(
            [ATFNCTL, *words],
            env=environment(daemon) | {"TERM": "xterm", "COLUMNS": "250"},
            stdout=write,
            stderr=subprocess.PIPE,
        )
        os.close(write)
        self._read = read
        os.set_blocking(read, False)

    def has(self, words: str) -> bool:
        try:
            while chunk := os.read(self._read, 65536):
                self.text += chunk
        except OSError:
            pass  # nothing more yet, or (EIO) the terminal's other end is closed
        return words.encode() in self.text

    def interrupt(self) -> tuple[int, bytes]:
        self.process.send_signal(signal.SIGINT)
        _, complaints = self.process.communicate(timeout=30)
        os.close(self._read)
        return self.process.returncode, complaints


@pytest.mark.parametrize("terminal", [True, False])
def test_watch_shows_what_changes_until_ctrl_c(daemon: Serving, terminal: bool) -> None:
    stream = Stream(daemon, "flows", "--watch", "--interval", "0.1", terminal=terminal)
    until(lambda: stream.has("10.9.0.1:40002"), "the table")
    daemon.do(lambda: daemon.source.table.put(key(7), flow(7)))
    until(lambda: stream.has("10.9.0.1:7 "), "the new flow")
    assert stream.interrupt() == (0, b"")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_follow_shows_new_events_until_ctrl_c(daemon: Serving, form: list[str]) -> None:
    stream = Stream(daemon, "events", "--follow", "--after", "1498", *form)
    until(lambda: stream.has("#1500"), "what is there")
    event = daemon.source.log[-1]
    daemon.do(lambda: daemon.source.log.append(replace(event, seq=1501, what="late")))
    until(lambda: stream.has("late"), "what comes")
    assert stream.interrupt() == (0, b"")
    rows = stream.text.decode().splitlines()
    assert len(rows) == 3
    if form:
        assert [json.loads(row)["seq"] for row in rows] == [1499, 1500, 1501]


def test_a_start_is_light() -> None:
    """Neither the server's libraries nor the kernel room come with atfnctl."""
    code = "import sys, atfnd.ctl.verbs; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    heavy = {"aiohttp", "asyncio", "pyroute2", "pydantic", "yaml", "psutil"}
    assert not loaded & heavy
    ours = {name for name in loaded if name.startswith("atfnd.")}
    assert ours <= {"atfnd.ctl", "atfnd.errors"} | {
        f"atfnd.ctl.{name}" for name in ("client", "tables", "verbs")
    }
