# SPDX-License-Identifier: GPL-2.0-or-later
"""What a daemon may show: flows, an interface of four queues on CPUs 0-3, CPUs."""

from __future__ import annotations

from atfnd.model import (
    Actuator,
    Caps,
    Filter,
    Flow,
    FlowKey,
    FlowState,
    Match,
    NicStats,
    NicView,
    Protocol,
    Queue,
    QueueStats,
    Rss,
    SocketFound,
    Thread,
)
from atfnd.model.reason import Code

__all__ = ["flow", "found", "key", "lab", "rule"]

LOCAL, REMOTE = bytes([10, 0, 0, 2]), bytes([10, 9, 0, 1])


def key(remote_port: int, local_port: int = 5201) -> FlowKey:
    return FlowKey(Protocol.TCP, LOCAL, local_port, REMOTE, remote_port)


def flow(remote_port: int, state: FlowState = FlowState.STEERED) -> Flow:
    """Steered by rule 100 to queue 3 on CPU 3, where its thread runs and its packets arrive."""
    return Flow(
        key=key(remote_port),
        cookie=1_000_000 + remote_port,
        nic="lab:lab",
        state=state,
        app_cpu=3,
        thread=Thread(tid=4121, pid=4120, comm="iperf3", cgroup=None),
        target_queue=3,
        target_cpu=3,
        location=100,
        rx_queue=3,
        rx_cpu=3,
        bytes=123_456_789,
        used_ns=2_000,
        moved_ns=1_000,
        rule_name="bulk",
        why=Code.KERNEL("same core as the application"),
    )


def found(remote_port: int) -> SocketFound:
    """Without an entry: its thread ran last on CPU 1, where its packets arrive."""
    thread = Thread(tid=27_960, pid=27_960, comm="sshd", cgroup=None)
    of = key(remote_port)
    return SocketFound(of, 3_000_000 + remote_port, "lab:lab", thread, 1, 1, 1, 700, 5_000)


def rule(location: int, match: Match, queue: int) -> Filter:
    return Filter(location, match, queue, hits=7)


def lab(*rules: Filter, owned: frozenset[int] = frozenset({100})) -> NicView:
    queues = tuple(Queue(n, 8193 + n, None, n, True, 900 + n) for n in range(4))
    stats = tuple(QueueStats(n, 10 * n, 1500 * n, 7 * n, 3 * n) for n in range(4))
    return NicView(
        name="lab:lab",
        netns="/run/netns/lab-host",
        ifindex=2,
        budget=None,
        armed=True,
        up=True,
        caps=Caps("lab", True, 4096, True, True, True, True, Actuator.IN_PLACE),
        queues=queues,
        filters=rules,
        owned=owned,
        rss=Rss(bytes(range(40)), (0, 1, 2, 3) * 32),
        ring_size=256,
        stats=NicStats(stats, 5),
    )
