# SPDX-License-Identifier: GPL-2.0-or-later
"""The status of the daemon and the results of its moves, as objects and in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from atfnd.model import (
    BUDGET_SETTINGS,
    Flow,
    GuardState,
    Move,
    NicGuard,
    NicReads,
    Sample,
    Status,
)
from atfnd.serve.api.values import (
    Amount,
    Count,
    Mechanism,
    MoveVerdict,
    Positive,
    Proportion,
    StateWord,
    one_of,
    shown,
    words,
)

__all__ = ["MoveShown", "SampleShown", "StatusShown", "locality_said", "move_link", "move_view"]
__all__ += ["sample_view", "status_view"]


class MoveShown(TypedDict):
    """How a move of a flow ended."""

    mechanism: Mechanism
    verdict: MoveVerdict
    why: str
    why_code: str
    """The same as a code, which a program may compare (atfnd/model/reason.py)."""
    late_packets: Count
    took_s: Amount


class EndedMovesShown(TypedDict):
    """How many moves ended so."""

    mechanism: Mechanism
    verdict: MoveVerdict
    count: Count


class SampleShown(TypedDict):
    """The daemon at one moment."""

    uptime_s: Amount
    """`uptime_s` of the status then."""
    locality: Proportion | None
    """As in the status."""
    moves: list[EndedMovesShown]
    """Those that ended since the sample before."""


class ReadBytesShown(TypedDict):
    """Bytes that applications read, by the CPU where the kernel had processed them."""

    local: Count
    """On the CPU that read them."""
    remote: Count
    """On another one."""
    unseen: Count
    """Bytes of unconnected UDP sockets, for which the kernel keeps no CPU."""
    locality: Proportion | None
    """`local` / (`local` + `remote`); null if both are 0."""


class NicReadsShown(TypedDict):
    """Read locality of an interface. `armed` and `unarmed`: with and without steering."""

    nic: str
    recent_s: Amount
    """Length of `recent`, about 10 s."""
    recent: ReadBytesShown
    armed: ReadBytesShown
    """Since start, while the interface was armed."""
    unarmed: ReadBytesShown
    """Since start, while it was not armed."""


class NicGuardShown(TypedDict):
    """Whether steering an interface costs more than it saves."""

    nic: str
    state: Annotated[str, words(GuardState)]
    pairs: Count
    """Of slots that were compared."""
    lost: Count
    """Pairs that said nothing."""
    stops: Count
    """How often it stopped steering."""
    change: float | None
    """CPU per byte steered less unsteered, as a share of that, of the last pairs. null, none was
    compared."""
    why: str
    """Of the states cannot judge and stopped."""
    said: str
    """All of it in a sentence."""


class HostSettingShown(TypedDict):
    """A setting of the whole machine."""

    setting: Annotated[str, one_of(*BUDGET_SETTINGS)]
    state: Annotated[str, one_of("left", "set", "wanted", "manual", "refused", "unknown")]
    """`left`, nobody asks for it; `set`, it has the policy's value, or still ours; `wanted`, not
    yet; `manual`, another program changed it after us; `refused`, by the kernel; `unknown`, the
    kernel does not show it here."""
    now: str | None
    """null, the kernel does not show it here."""
    wanted: str | None
    """null, the policy does not ask for it."""
    original: str | None
    """Before the first write of atfnd. null, it is not atfnd's."""
    why: str
    """What stands in the way; empty, nothing."""


class CpuUseShown(TypedDict):
    """The CPU time of atfnd itself, as shares of one core."""

    allowed: Annotated[float, Field(gt=0)]
    """By the policy."""
    used: Annotated[float, Field(ge=0)]
    """In the last ten seconds."""
    over: bool
    """Moves wait for it."""
    waiting: Count
    """Flows whose moves wait."""


class StatusShown(TypedDict):
    """The daemon at a glance: observer, armed interfaces, table, losses."""

    version: str
    pid: Positive
    since_wall_s: float
    uptime_s: Amount
    observer: Annotated[str, one_of("bpf", "sock_diag")]
    observer_why: str
    armed: list[str]
    disarmed: list[str]
    """The policy arms these interfaces; an order keeps them disarmed until the next."""
    table_entries: Count
    table_capacity: Count
    t_delete_s: float
    """In force now; shorter when the table fills."""
    overflow: Count
    """Flows that found the table full."""
    flows_by_state: dict[StateWord, Count]
    locality: Proportion | None
    """Read locality of late, over all interfaces: of the bytes that applications read, the share
    that the kernel had processed on the CPU that read them. null, nothing was read or it is not
    measured (`reads` says which)."""
    locality_said: str
    """`locality` in a sentence, or why it is null."""
    reads: list[NicReadsShown] | None
    """Read locality by interface, in bytes. null, not measured: the sock_diag observer does not see
    where packets are processed."""
    guard: list[NicGuardShown]
    """By interface, whether steering costs more than it saves."""
    actions_applied: Count
    actions_refused: Count
    events_lost: Count
    resyncs: Count
    moves: list[EndedMovesShown]
    late_packets: Count
    host: list[HostSettingShown]
    """Settings of the whole machine, which a policy's `host` may ask for."""
    cpu: CpuUseShown | None
    """null, not read yet."""
    policy_files: list[str]


def move_view(move: Move) -> MoveShown:
    """How the last move of a flow ended."""
    return {
        "mechanism": move.mechanism,
        "verdict": move.verdict,
        "why": str(move.why),
        "why_code": move.why.word,
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


def status_view(status: Status, now_ns: int) -> StatusShown:
    """The daemon at a glance."""
    return shown(
        StatusShown,
        status,
        uptime_s=round((now_ns - status.since_ns) / 1e9, 3),
        t_delete_s=status.t_delete_ns / 1e9,
        flows_by_state=dict(status.flows_by_state),
        locality_said=locality_said(status),
        reads=None if status.reads is None else [_reads_view(nic) for nic in status.reads],
        guard=[shown(NicGuardShown, each, said=_guard_said(each)) for each in status.guards],
        moves=_moves_view(status.moves),
    )


def sample_view(sample: Sample, since_ns: int) -> SampleShown:
    """Times count from the daemon's start."""
    uptime_s = round((sample.at_ns - since_ns) / 1e9, 3)
    return shown(SampleShown, sample, uptime_s=uptime_s, moves=_moves_view(sample.moves))


def _moves_view(moves: Iterable[tuple[str, str, int]]) -> list[EndedMovesShown]:
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


def _guard_said(guard: NicGuard) -> str:
    """`watching, CPU per byte -4.1% by 12 pairs of slots`."""
    said, why = guard.state.value, guard.why
    if guard.state is GuardState.WATCHING and guard.change is not None:
        said += f", CPU per byte {guard.change:+.1%} by {guard.pairs} pairs of slots"
    if guard.state is GuardState.IDLE:
        why = "nothing is steered, so there is nothing to compare"
    return f"{said}: {why}" if why else said


def _reads_view(reads: NicReads) -> NicReadsShown:
    """With the locality of each."""
    named = {"recent": reads.recent, "armed": reads.armed, "unarmed": reads.unarmed}
    each = {name: shown(ReadBytesShown, read, locality=read.share) for name, read in named.items()}
    return shown(NicReadsShown, reads, recent_s=round(reads.recent_ns / 1e9, 3), **each)
