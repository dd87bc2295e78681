# SPDX-License-Identifier: GPL-2.0-or-later
"""Frames of `atfnctl top`: they fit, whatever there is to show."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.ctl.columns import FLOW_COLUMNS
from atfnd.ctl.events import folded
from atfnd.ctl.top.figures import CpuFigure, Figures, QueueFigure
from atfnd.ctl.top.forwarded import pairs_in
from atfnd.ctl.top.frame import Size, flow_lines, frame, page
from atfnd.ctl.top.view import COLUMNS, View, fitting, shown
from tests.ctl.figures import FIGURES, FORWARDED, STATUS, Row, a_flow, a_pair, an_event

VIEWS = st.builds(
    View, column=st.integers(0, 14), turned=st.booleans(), words=st.sampled_from(["", "a", "10"]),
    typed=st.none() | st.text(max_size=9), paused=st.booleans(), help=st.booleans(),
    forwarded=st.booleans(), at=st.integers(0, 20), first=st.integers(0, 20),
)  # fmt: skip
SIZES = st.builds(Size, st.integers(1, 300), st.integers(1, 80))


SIZE = Size(80, 24)
START = View()


def drawn(figures: Figures, view: View = START, trouble: str = "", size: Size = SIZE) -> list[str]:
    flows = shown(figures.flows, view)
    view = view.within(len(flows), flow_lines(figures, size))
    return [line.plain for line in frame(figures, flows, view, trouble, size)]


def some(flows: int = 1, cpus: int = 2, queues: int = 4, moves: int = 5) -> Figures:
    return Figures(
        status=STATUS,
        flows=[a_flow(pid=n, bits_per_s=n * 1e6) for n in range(flows)],
        flows_age_s=0.0,
        cpus=[CpuFigure(n, 0.5, n / cpus / 2) for n in range(cpus)],
        queues=[QueueFigure("eth0", n, n, n * 1e3, None) for n in range(queues)],
        moves=[an_event("insert", flow=f"tcp {n}") for n in range(moves)],
    )


@given(FIGURES, VIEWS, st.text(max_size=100), SIZES, FORWARDED)
def test_a_frame_has_the_terminals_size(
    figures: Figures, view: View, trouble: str, size: Size, forwarded: Row | None
) -> None:
    flows = shown(figures.flows, view)
    rows = len(pairs_in(forwarded) if view.forwarded else flows)
    at = view.within(rows, flow_lines(figures, size))
    lines = frame(figures, flows, at, trouble, size, forwarded)
    assert [line.cell_len for line in lines] == [size.width] * size.height
    assert all(line.plain.isprintable() for line in lines)


@given(FIGURES, st.integers(20, 400))
def test_a_page_has_every_flow(figures: Figures, width: int) -> None:
    lines = page(figures, width)
    assert all(line.cell_len <= width for line in lines)
    moves = folded(reversed(figures.moves))
    assert len(lines) >= len(figures.flows) + len(moves) + 3


def test_moves_to_and_fro_are_one_line() -> None:
    there = an_event("queue-cpu", flow=None, what="queue 0: CPU 0 -> 1", old="0", new="1")
    back = an_event("queue-cpu", flow=None, what="queue 0: CPU 1 -> 0", old="1", new="0")
    lines = drawn(replace(some(), moves=[back, there, back, there]))
    (moved,) = (line for line in lines if "queue 0: CPU" in line)
    assert moved.rstrip().endswith("×4 to and fro")


def test_at_80_columns_by_24_lines() -> None:
    lines = drawn(some(flows=40))
    assert (
        lines[0].rstrip() == "atfnd 0.1.0  40 flows, 40 placed  780Mbit/s  locality 50%  eth0 armed"
    )
    assert lines[2].rstrip() == (
        "CPU 0   [#####.....] net  50% app   0%  CPU 1   [#####|||..] net  50% app  25%"
    )
    assert lines[3].rstrip() == (
        "eth0/0       CPU 0      0pkt/s     -b/s eth0/1       CPU 1   1.0kpkt/s     -b/s"
    )
    assert " ".join(lines[5].split()) == "BIT/Sv COMM PID CPU RXQ RX PLACED STATE WHY"
    assert lines[6].split()[:8] == ["39.0M", "iperf3", "39", "1", "2", "1", "yes", "steered"]
    assert "LAST MOVES" in lines[-5]
    assert lines[-7].startswith("1/40  tcp 10.0.0.1:80 <- 10.0.0.2:4000  eth0  steered  [rest]")
    assert lines[-6].strip() == "its thread runs on CPU 1"


ANSWER: Row = {
    "seconds": 2.0, "why_not": None, "missed_packets": 0, "elsewhere": [], "pairs": [],
}  # fmt: skip


def test_forwarded_packets_instead_of_flows() -> None:
    near = {**a_pair(), "tx_cpu": 2, "distance": "cpu"}
    view, answer = View(forwarded=True, at=1), {**ANSWER, "pairs": [near, a_pair()]}
    lines = [each.plain.rstrip() for each in frame(some(), [], view, "", SIZE, answer)]
    first = next(n for n, line in enumerate(lines) if line.lstrip().startswith("PKT/S"))
    assert [" ".join(line.split()) for line in lines[first : first + 3]] == [
        "PKT/S IN RXQ CPU OUT TXQ TX DISTANCE BIT/S",
        "1.5k eth0 2 2 eth1 3 2 same CPU 12.0M",
        "1.5k eth0 2 2 eth1 3 3 far 12.0M",
    ]
    assert "2/2  eth0:2 eth1:3" in lines
    assert "  why: atfnctl explain --pair eth0:2 eth1:3" in lines
    assert not any("BIT/Sv" in line for line in lines)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (None, ": asking  PAUSED"),
        ({"why_not": "just begun"}, ": just begun"),
        ({"missed_packets": 7}, " of 2.0 s, and 7 packets that are not here"),
        ({"elsewhere": [{"netns": "wire", "packets_pps": 3.2}]},
         " of 2.0 s; namespace wire: 3 packets/s"),
    ],
    ids=range(4),
)  # fmt: skip
def test_what_is_said_of_forwarded_packets(answer: Row | None, said: str) -> None:
    known = None if answer is None else {**ANSWER, **answer}
    line = frame(some(), [], View(forwarded=True, paused=True), "", SIZE, known)[1].plain
    assert line.startswith(f"forwarded packets{said}")


def test_of_many_cpus_the_busiest_are_shown() -> None:
    text = "\n".join(drawn(some(cpus=256, queues=256), size=Size(80, 24)))
    assert "CPU 255 [" in text
    assert "CPU 0   [" not in text
    assert "eth0/255" in text
    assert flow_lines(some(cpus=256, queues=256), Size(80, 24)) >= 6


def test_trouble_filter_pause_and_nothing() -> None:
    figures = some()
    assert drawn(figures, trouble="gone")[1].strip() == "gone"
    assert drawn(figures, View(typed="ip"))[1].startswith("filter: ip_  (1 of 1;")
    assert drawn(figures, View(words="ip", paused=True))[1].split("  ")[1:3] == [
        "only 'ip': 1 of 1", "PAUSED",
    ]  # fmt: skip
    assert drawn(replace(figures, flows_age_s=8.4))[1].strip() == "by BIT/S  flows of 8 s ago"
    assert drawn(figures, View(column=2, turned=True))[1].strip() == "by PID, turned"
    assert any(
        line.startswith("no flow has these words") for line in drawn(figures, View(words="x"))
    )
    assert any(line.startswith("no flow ") for line in drawn(replace(figures, flows=[])))
    assert any("the other way round" in line for line in drawn(figures, View(help=True)))


def test_columns_are_left_out_in_the_order_of_flows() -> None:
    order = [name for name in FLOW_COLUMNS if name in {each.flows_name for each in COLUMNS}]
    for width in range(300):
        shown_names = {column.flows_name for column in fitting(width, [])}
        gone = [name for name in order if name not in shown_names]
        assert gone == order[: len(gone)]
    heads = [column.name for column in fitting(80, [])]
    assert heads == ["BIT/S", "COMM", "PID", "CPU", "RXQ", "RX", "PLACED", "STATE", "WHY"]
    assert list(COLUMNS) == fitting(200, [])


def test_addresses_are_whole_at_any_width() -> None:
    near, far = (f"[2001:db8:1234:5678:9abc:def0:1234:{n}]:40000" for n in (1111, 2222))
    figures = replace(some(), flows=[a_flow(local=near, remote=far)])
    for width in range(80, 300):
        out = "\n".join(drawn(figures, size=Size(width, 24)))
        assert near in out
        assert far in out
        assert out.count("[2001") == out.count(near) + out.count(far)


@pytest.mark.parametrize(
    ("queues", "armed", "disarmed", "said"),
    [
        (["eth0"], [], [], "eth0 observed"),
        (["eth0"], ["eth0"], [], "eth0 armed"),
        (["eth0"], [], ["eth0"], "eth0 disarmed"),
        ([f"enp{n}s0f0np0" for n in range(9)], ["enp1s0f0np0"], [], "locality 50%  1 of 9 armed"),
    ],
)
def test_how_interfaces_stand(
    queues: list[str], armed: list[str], disarmed: list[str], said: str
) -> None:
    figures = replace(
        some(),
        queues=[QueueFigure(name, 0, 0, None, None) for name in queues],
        status={**STATUS, "armed": armed, "disarmed": disarmed},
    )
    assert drawn(figures)[0].rstrip().endswith(f"  {said}")


def test_help_names_what_is_left_out() -> None:
    out = " ".join("\n".join(drawn(some(), View(help=True))).split())
    assert "left out at this width: TO, PROTO, LOCAL, REMOTE, NIC, RULE" in out
    wide = "\n".join(drawn(some(), View(help=True), size=Size(200, 24)))
    assert "left out" not in wide
