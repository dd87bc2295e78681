# SPDX-License-Identifier: GPL-2.0-or-later
"""Figures and looks of `atfnctl top`, made up: of hypothesis, and one at a time."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from atfnd.ctl.top.figures import CpuFigure, Figures, FlowFigure, QueueFigure
from atfnd.ctl.top.look import Look

__all__ = ["FIGURES", "FLOWS", "FORWARDED", "STATUS", "Row", "a_flow", "a_look", "a_pair"]
__all__ += ["an_event"]

Row = dict[str, Any]
STATUS: Row = {
    "version": "0.1.0", "since_wall_s": 1.0, "locality": 0.5, "armed": ["eth0"], "disarmed": [],
}  # fmt: skip


def a_flow(**fields: Any) -> FlowFigure:
    known: Row = {
        "bits_per_s": 1e6, "comm": "iperf3", "pid": 7, "app_cpu": 1, "rx_queue": 2, "rx_cpu": 1,
        "target_cpu": 1, "placed": True, "state": "steered", "proto": "tcp",
        "local": "10.0.0.1:80", "remote": "10.0.0.2:4000", "nic": "eth0", "rule": "rest",
        "why": "its thread runs on CPU 1",
    }  # fmt: skip
    return FlowFigure(**{**known, **fields})


def a_pair() -> Row:
    return {
        "ingress": "eth0", "rx_queue": 2, "egress": "eth1", "tx_queue": 3, "cpu": 2, "tx_cpu": 3,
        "distance": "machine", "packets_pps": 1_500.0, "bytes_per_s": 1_500_000,
    }  # fmt: skip


def an_event(kind: str, **fields: Any) -> Row:
    known: Row = {
        "kind": kind, "time": "2023-11-14T22:13:20.500+00:00", "nic": "eth0",
        "flow": "tcp 10.0.0.1:80 <- 10.0.0.2:4000", "what": "queue 0 -> 2", "why": "so",
    }  # fmt: skip
    return {**known, **fields}


def a_look(at_s: float, carried: int, busy_s: float = 0, events: tuple[Row, ...] = ()) -> Look:
    """One flow that carried so much by then; one CPU, busy for so long: half of it by softirqs,
    a quarter by the NAPI thread of its queue."""
    at_ns = int(at_s * 1e9)
    flow: Row = {
        "cookie": 1, "read_ns": at_ns, "bytes": carried, "fell_back": None,
        **{n: getattr(a_flow(), n) for n in FlowFigure.__slots__ if n != "bits_per_s"},
    }  # fmt: skip
    queue: Row = {"nic": "eth0", "queue": 2, "cpu": 1, "read_ns": at_ns}
    spent = int(busy_s * 1e9)
    return Look(
        status=STATUS,
        flows=[flow],
        flows_age_s=0.0,
        queues=[{**queue, "packets": carried // 1000, "bytes": None}],
        cpu_time={
            "read_ns": at_ns,
            "cpus": [{"cpu": 1, "busy_ns": spent, "softirq_ns": spent // 2}],
            "napi_threads": [{"nic": "eth0", "queue": 2, "cpu": 1, "ran_ns": spent // 4}],
        },
        events=events,
    )


_number = st.none() | st.integers(0, 9999)
_rate = st.none() | st.floats(0, 1e18)
_text = st.text(max_size=40)
FLOWS = st.lists(
    st.builds(
        FlowFigure, bits_per_s=_rate, comm=st.none() | _text, pid=_number,
        app_cpu=st.integers(0, 9999), rx_queue=_number, rx_cpu=_number, target_cpu=_number,
        placed=st.none() | st.booleans(), state=_text, proto=_text, local=_text, remote=_text,
        nic=_text, rule=_text, why=_text,
    ),
    max_size=8,
)  # fmt: skip
_cpus = st.floats(0, 1).flatmap(
    lambda net: st.builds(
        CpuFigure,
        st.integers(0, 9999),
        st.just(net),
        st.floats(0, 1).map(lambda of: of * (1 - net)),
    )
)
FIGURES = st.builds(
    Figures,
    status=st.just(STATUS) | st.just({**STATUS, "locality": None}),
    flows=FLOWS,
    flows_age_s=st.floats(0, 1e4),
    cpus=st.lists(
        _cpus | st.builds(CpuFigure, st.integers(0, 9), st.none(), st.none()), max_size=9
    ),
    queues=st.lists(
        st.builds(QueueFigure, _text, st.integers(0, 9999), _number, _rate, _rate), max_size=9
    ),
    moves=st.lists(st.builds(an_event, st.just("insert"), what=_text, why=_text), max_size=9),
)
_pairs = st.lists(
    st.fixed_dictionaries(
        {
            "ingress": _text, "rx_queue": _number, "egress": _text, "tx_queue": _number,
            "cpu": _number, "tx_cpu": _number, "packets_pps": st.floats(0, 1e18),
            "distance": st.sampled_from(["cpu", "core", "llc", "node", "machine", None]),
            "bytes_per_s": st.integers(0, 1 << 62),
        }
    ),
    max_size=9,
)  # fmt: skip
FORWARDED = st.none() | st.fixed_dictionaries(
    {"pairs": _pairs, "seconds": st.floats(0, 60), "why_not": st.none() | _text,
     "missed_packets": st.integers(0, 9),
     "elsewhere": st.lists(
         st.fixed_dictionaries({"netns": _text, "packets_pps": st.floats(0, 1e18)}), max_size=3
     )}
)  # fmt: skip
