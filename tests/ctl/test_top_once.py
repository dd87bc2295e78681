# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl top` without a terminal, on one that is dumb, and without a daemon."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.ctl.client import Client
from atfnd.ctl.top.asking import PATIENCE_S, Patience
from atfnd.ctl.top.figures import Series
from atfnd.ctl.top.look import Looks
from tests.ctl.terminals import a_terminal
from tests.ctl.test_ctl_streams import Stream
from tests.serve.asking import ATFNCTL, atfnctl
from tests.serve.published import Serving, flow, serving, three_flows
from tests.wait import until

SECOND_NS = 10**9


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Serving]:
    """Whose clock goes on by a second with every look at it."""
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        source = running.source
        reported = source.status

        def status() -> object:
            spent, threads = source.spent
            busy_ns = {cpu: ns + SECOND_NS // 2 for cpu, ns in spent.busy_ns.items()}
            source.spent = replace(spent, at_ns=spent.at_ns + SECOND_NS, busy_ns=busy_ns), threads
            source.audited += SECOND_NS
            for each in [each for each in source.table if each is not None]:
                carried = each.bytes + each.key.remote_port * 1000
                source.table.put(each._replace(bytes=carried, used_ns=source.audited))
            return reported()

        source.status = status  # type: ignore[assignment,method-assign]
        yield running


def test_a_pipe_gets_one_frame(daemon: Serving) -> None:
    done = atfnctl(daemon, "top", "--interval", "0.1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("atfnd 0.1.0  3 flows, 3 placed  960Mbit/s  ")
    assert "net   0% app  50%" in lines[1]
    rows = [line.split() for line in lines if line.lstrip().startswith("320M ")]
    assert [(row[1], row[2], row[7]) for row in rows] == [("iperf3", "4120", "yes")] * 3
    assert all(line == line.rstrip() for line in lines)


def test_json(daemon: Serving) -> None:
    answer = json.loads(atfnctl(daemon, "top", "--json", "--interval", "0.1").stdout)
    assert answer.keys() == {"status", "flows", "flows_age_s", "cpus", "queues", "moves"}
    rates = sorted(row["bits_per_s"] for row in answer["flows"])
    assert rates == [320_000_000, 320_008_000, 320_016_000]
    assert answer["cpus"][1] == {"cpu": 1, "network": 0.0, "application": 0.5}


def test_one_interface(daemon: Serving) -> None:
    out = atfnctl(daemon, "top", "--nic", "eth1", "--interval", "0.1").stdout
    assert "eth1 observed" in out
    assert "lab:lab" not in out
    wrong = atfnctl(daemon, "top", "--nic", "nope")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("atfnd: no such interface: nope\n")


def test_what_is_not_known_is_waited_for_and_then_said(tmp_path: Path) -> None:
    """Nobody reads the bytes of flows: their rates never come."""
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        done = atfnctl(running, "top", "--interval", "0.1")
    assert done.returncode == 0
    assert "  -bit/s  " in done.stdout.splitlines()[0]


def test_on_a_terminal_nothing_is_drawn_without_a_daemon(tmp_path: Path) -> None:
    with a_terminal(tmp_path, 160, 24, ATFND_SOCKET=str(tmp_path / "none")) as terminal:
        terminal.run(f"{ATFNCTL} top; echo ended with $?")
        screen = terminal.has("nothing listens on ", "ended with 3")
        assert "q quit" not in screen


def test_a_dumb_terminal_has_frames_one_below_the_other(daemon: Serving) -> None:
    stream = Stream(daemon, "top", "--interval", "0.1", terminal=True, TERM="dumb")
    until(lambda: stream.has("iperf3") and stream.text.count(b"LAST MOVES") > 2, "three frames")
    assert stream.interrupt() == (0, b"")
    assert b"\x1b" not in stream.text
    assert len([line for line in stream.text.splitlines() if b"LAST MOVES" in line]) > 2


def test_ctrl_c_without_a_terminal(tmp_path: Path) -> None:
    """While it waits for rates."""
    with serving(tmp_path / "atfnd.sock", three_flows()) as running:
        asked = threading.Event()
        reported = running.source.status
        running.source.status = lambda: (asked.set(), reported())[1]  # type: ignore[method-assign,func-returns-value]
        stream = Stream(running, "top")
        until(asked.is_set, "it asks")
        assert stream.interrupt() == (0, b"")


def test_a_big_table_is_read_seldom(daemon: Serving) -> None:
    """The rest of it is read with every look."""
    daemon.do(lambda: daemon.source.fill(range(2000)))
    looks, series = Looks(Client(str(daemon.socket)), None), Series()
    first, second = looks.look(), looks.look()
    assert len(first.flows) == 2003
    assert second.flows is first.flows
    assert second.flows_age_s > first.flows_age_s
    assert second.cpu_time["read_ns"] > first.cpu_time["read_ns"]
    assert series.see(first).flows is series.see(second).flows
    until(lambda: looks.look().flows is not first.flows, "it is read again")


def test_forwarded_packets_are_asked_for_while_they_are_shown_and_nothing_while_it_is_paused(
    daemon: Serving, tmp_path: Path
) -> None:
    wanted = daemon.source.pairs_wanted
    with a_terminal(tmp_path, 80, 24, ATFND_SOCKET=str(daemon.socket)) as terminal:
        terminal.run(f"{ATFNCTL} top --interval 0.1")
        terminal.has("BIT/Sv")
        assert wanted == []
        terminal.press("f")
        terminal.has("forwarded packets of 2.0 s", "PKT/S", "same CPU")
        terminal.press("Down")
        terminal.has("why: atfnctl explain --pair lab:lab:3 eth1:1")
        until(lambda: len(wanted) > 1, "it asks again")
        terminal.press("f")
        terminal.has("BIT/Sv")
        asked, looks = len(wanted), daemon.source.audited

        def looked_on() -> bool:
            return daemon.source.audited > looks + 3 * SECOND_NS

        until(looked_on, "it goes on")
        assert len(wanted) <= asked + 1
        terminal.press("p")
        terminal.has("PAUSED")
        daemon.do(lambda: daemon.source.table.put(flow(7)))
        for key in ("h", "x", "Down"):
            terminal.press(key)
            terminal.has("the other way round" if key == "h" else "PAUSED")
            assert "3 flows" in terminal.screen()
        terminal.press("p")
        terminal.has("4 flows")


def test_patience_ends() -> None:
    patience = Patience()
    assert patience.left_s(100) == PATIENCE_S
    assert patience.left_s(130) == PATIENCE_S - 30
    patience.answered()
    assert patience.left_s(150) == PATIENCE_S
    assert patience.left_s(150 + PATIENCE_S) == 0
    assert patience.left_s(1000) == 0
