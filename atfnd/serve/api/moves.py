# SPDX-License-Identifier: GPL-2.0-or-later
"""The status of the daemon and the results of its moves, as objects and in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from atfnd.model import Flow, GuardState, Move, NicGuard, NicReads, ReadBytes, Sample, Status

__all__ = ["locality_said", "move_link", "move_view", "sample_view", "status_view"]

View = dict[str, object]


def move_view(move: Move) -> View:
    """How the last move of a flow ended."""
    return {
        "mechanism": move.mechanism,
        "verdict": move.verdict,
        "why": str(move.why),
        "late_packets": move.late_packets,
        "took_s": move.took_ns / 1e9,
    }


def move_link(flow: Flow) -> list[str]:
    """What is known of the order of its packets in its last move; empty, if it had none."""
    move = flow.move
    if move is None:
        return []
    if move.verdict == "deferred":
        return [f"A move of it was put off: {move.why}."]
    how = "without protection" if move.mechanism == "none" else f"by {move.mechanism}"
    late = f", {move.late_packets} packets late" if move.late_packets else ""
    took_ms = move.took_ns / 1e6
    return [f"Its last move, {how}, ended as {move.verdict} in {took_ms:.1f} ms{late}: {move.why}."]


def status_view(status: Status, now_ns: int) -> View:
    """The daemon at a glance."""
    return {
        "version": status.version,
        "pid": status.pid,
        "since_wall_s": status.since_wall_s,
        "uptime_s": round((now_ns - status.since_ns) / 1e9, 3),
        "observer": status.observer,
        "observer_why": status.observer_why,
        "armed": list(status.armed),
        "disarmed": list(status.disarmed),
        "table_entries": status.table_entries,
        "table_capacity": status.table_capacity,
        "t_delete_s": status.t_delete_ns / 1e9,
        "overflow": status.overflow,
        "flows_by_state": dict(status.flows_by_state),
        "locality": status.locality,
        "locality_said": locality_said(status),
        "reads": None if status.reads is None else [_reads_view(nic) for nic in status.reads],
        "guard": [_guard_view(each) for each in status.guards],
        "actions_applied": status.actions_applied,
        "actions_refused": status.actions_refused,
        "events_lost": status.events_lost,
        "resyncs": status.resyncs,
        "moves": _moves_view(status.moves),
        "late_packets": status.late_packets,
        "host": [each._asdict() for each in status.host],
        "cpu": None if status.cpu is None else status.cpu._asdict(),
        "policy_files": list(status.policy_files),
    }


def sample_view(sample: Sample, since_ns: int) -> View:
    """Times count from the daemon's start."""
    return {
        "uptime_s": round((sample.at_ns - since_ns) / 1e9, 3),
        "locality": sample.locality,
        "moves": _moves_view(sample.moves),
    }


def _moves_view(moves: Iterable[tuple[str, str, int]]) -> list[View]:
    return [
        {"mechanism": mechanism, "verdict": verdict, "count": count}
        for mechanism, verdict, count in moves
    ]


def locality_said(status: Status) -> str:
    """Recent read locality, or why there is none."""
    if status.reads is None:
        return f"not measured: the {status.observer} observer does not see where packets go"
    if status.locality is not None:
        seconds = max(nic.recent_ns for nic in status.reads) / 1e9
        where = f"processed on the CPU that read them, last {seconds:.0f} s"
        return f"{status.locality:.2%} of bytes {where}"
    if not any(any(nic.armed) or any(nic.unarmed) for nic in status.reads):
        return "no data read yet"
    if any(nic.recent.unseen for nic in status.reads):
        return "not known: the kernel keeps no CPU for unconnected UDP, and nothing else was read"
    return "no data read lately"


def _guard_view(guard: NicGuard) -> View:
    return {**guard._asdict(), "state": guard.state.value, "said": _guard_said(guard)}


def _guard_said(guard: NicGuard) -> str:
    """`watching, CPU per byte -4.1% by 12 pairs of slots`."""
    said, why = guard.state.value, guard.why
    if guard.state is GuardState.WATCHING and guard.change is not None:
        said += f", CPU per byte {guard.change:+.1%} by {guard.pairs} pairs of slots"
    if guard.state is GuardState.IDLE:
        why = "nothing is steered, so there is nothing to compare"
    return f"{said}: {why}" if why else said


def _reads_view(reads: NicReads) -> View:
    return {
        "nic": reads.nic,
        "recent_s": round(reads.recent_ns / 1e9, 3),
        "recent": _bytes_view(reads.recent),
        "armed": _bytes_view(reads.armed),
        "unarmed": _bytes_view(reads.unarmed),
    }


def _bytes_view(read: ReadBytes) -> View:
    return {**read._asdict(), "locality": read.share}
