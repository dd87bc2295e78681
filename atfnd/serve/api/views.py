# SPDX-License-Identifier: GPL-2.0-or-later
"""Flows as JSON objects (docs/api.md): those of the table, and those without an entry. Pure."""

from __future__ import annotations

from typing_extensions import TypedDict

from atfnd.model import Flow, Habit, Protocol, SocketFound, SocketState, endpoint
from atfnd.serve.api.moves import MoveShown, move_view
from atfnd.serve.api.values import Amount, Count, HabitWord, StateWord, Transport, Within

__all__ = ["FlowShown", "flow_view", "placed", "socket_view", "why_unsteered"]


class FlowShown(TypedDict):
    """A flow of the Flow-to-Core table, or one without an entry (`local`, `left`)."""

    proto: Transport
    local: str
    """`*` for what an unconnected socket leaves open."""
    remote: str
    pid: int | None
    tid: int | None
    comm: str | None
    app_cpu: int | None
    """The CPU the socket is used on."""
    rx_queue: int | None
    """Where packets were last observed."""
    rx_cpu: int | None
    target_queue: int | None
    """Where they should arrive."""
    target_cpu: int | None
    placed: bool | None
    fell_back: str | None
    """Why the placement is not met."""
    habit: HabitWord
    home: Within | None
    """The part of the machine that its thread stays in; null where it is not known."""
    state: StateWord
    """Only `/v1/flows/stream` lists `local` and `left`: they have no entry."""
    filter: int | None
    """Location of its filter."""
    rule: str
    why: str
    why_code: str | None
    """Null of a flow without an entry."""
    nic: str
    cookie: Count
    bytes: Count
    read_ns: Count
    """When `bytes` was read; CLOCK_MONOTONIC."""
    age_s: Amount
    """Since it was last seen in use."""
    moved_s: Amount | None
    move: MoveShown | None
    """How its last move ended."""


def placed(flow: Flow) -> bool | None:
    """Its packets are observed where its policy's placement wants them; None: not observed yet, or
    wanted on no CPU. False for a flow that fell back, wherever its packets arrive."""
    if flow.rx_cpu is None or (flow.target_cpu is None and flow.fell_back is None):
        return None
    return flow.rx_cpu == flow.target_cpu and flow.fell_back is None


def flow_view(flow: Flow, now_ns: int, audited_ns: int = 0) -> FlowShown:
    """`now_ns` is CLOCK_MONOTONIC, as the flow's own times; `audited_ns`, of the last audit."""
    key, thread = flow.key, flow.thread
    return {
        "proto": Protocol(key.protocol).name.lower(),
        "local": endpoint(key.local, key.local_port),
        "remote": endpoint(key.remote, key.remote_port),
        "pid": thread.pid if thread else None,
        "tid": thread.tid if thread else None,
        "comm": thread.comm if thread else None,
        "app_cpu": flow.app_cpu,
        "rx_queue": flow.rx_queue,
        "rx_cpu": flow.rx_cpu,
        "target_queue": flow.target_queue,
        "target_cpu": flow.target_cpu,
        "placed": placed(flow),
        "fell_back": None if flow.fell_back is None else str(flow.fell_back),
        "habit": flow.habit.value,
        "home": None if flow.pinned is None else flow.home.value,
        "state": flow.state.value,
        "filter": flow.location,
        "rule": flow.rule_name,
        "why": str(flow.why),
        "why_code": flow.why.word,
        "nic": flow.nic,
        "cookie": flow.cookie,
        "bytes": flow.bytes,
        "read_ns": max(flow.used_ns, audited_ns),
        "age_s": _since(flow.used_ns, now_ns),
        "moved_s": _since(flow.moved_ns, now_ns) if flow.moved_ns else None,
        "move": None if flow.move is None else move_view(flow.move),
    }


def socket_view(found: SocketFound, left_by: str | None) -> FlowShown:
    """The fields of a flow, of one without an entry. `left_by` as in `Source`."""
    local = found.state is SocketState.LOCAL
    thread = found.thread
    return {
        "proto": Protocol(found.key.protocol).name.lower(),
        "local": endpoint(found.key.local, found.key.local_port),
        "remote": endpoint(found.key.remote, found.key.remote_port),
        "pid": thread.pid if thread else None,
        "tid": thread.tid if thread else None,
        "comm": thread.comm if thread else None,
        "app_cpu": found.app_cpu,
        "rx_queue": found.rx_queue,
        "rx_cpu": found.rx_cpu,
        "target_queue": found.rx_queue if local else None,
        "target_cpu": found.rx_cpu if local else None,
        "placed": True if local else None,
        "fell_back": None,
        "habit": Habit.UNKNOWN.value,
        "home": None,
        "state": found.state.value,
        "filter": None,
        "rule": "",
        "why": why_unsteered(found, left_by),
        "why_code": None,
        "nic": found.nic,
        "cookie": found.cookie,
        "bytes": found.bytes,
        "read_ns": found.read_ns,
        "age_s": 0.0,
        "moved_s": None,
        "move": None,
    }


def why_unsteered(found: SocketFound, left_by: str | None) -> str:
    """Why a flow has no entry."""
    if found.state is SocketState.LOCAL:
        return "its packets arrive on the CPU its thread runs on"
    if left_by is not None:
        return f"policy {left_by} says leave"
    if found.app_cpu is None:
        return "its thread is not known: it has not used the socket since atfnd looks"
    if found.rx_cpu is None:
        return "the kernel does not say on which CPU its packets arrive"
    return "it carries too little, is too young, or its thread has not stayed on that CPU"


def _since(at_ns: int, now_ns: int) -> float:
    return round(max(now_ns - at_ns, 0) / 1e9, 3)
