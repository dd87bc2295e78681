# SPDX-License-Identifier: GPL-2.0-or-later
"""Model values for tests of pure code: a NIC with one queue per CPU, flows by number."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory, NicMemory, RulesInForce
from atfnd.model import (
    Actuator,
    Caps,
    Flow,
    FlowKey,
    FlowRule,
    FlowState,
    Migrant,
    Mode,
    NicStats,
    NicView,
    Placement,
    Protocol,
    Queue,
    Rss,
    SocketSeen,
    Thread,
)
from atfnd.model.reason import Code

__all__ = ["NIC", "RULE", "THREAD", "flow", "key", "memory_of", "one_rule", "seen"]

THREAD = Thread(tid=100, pid=100, comm="app", cgroup=None)
NIC = NicView(
    name="nic",
    netns=None,
    ifindex=1,
    armed=True,
    budget=None,
    up=True,
    caps=Caps("test", True, 4096, True, False, True, True, Actuator.IN_PLACE),
    queues=tuple(Queue(i, 100 + i, None, i, True, 1000 + i) for i in range(4)),
    filters=(),
    owned=frozenset(),
    rss=Rss(bytes(40), (0, 1, 2, 3) * 32),
    ring_size=256,
    stats=NicStats((), None),
)
RULE = FlowRule(
    name="rest", source="test:1", protocols=None, ports=None, local=None, remote=None,
    processes=None, min_bytes=0, min_age_ns=0, placement=Placement.CORE, order=Mode.IMMEDIATE,
    owner=Migrant.THREAD, dwell_ns=0, t_delete_ns=30_000_000_000,
)  # fmt: skip


def one_rule(
    hold_down_ns: int, t_delete_ns: int, order: Mode = Mode.IMMEDIATE,
    owner: Migrant = Migrant.THREAD, **changes: Any,
) -> RulesInForce:  # fmt: skip
    """The flows below fall under it."""
    rule = replace(RULE, order=order, owner=owner, t_delete_ns=t_delete_ns)
    return RulesInForce(hold_down_ns, t_delete_ns, {"rest": rule}, **changes)


def memory_of(table: FlowTable, in_force: RulesInForce) -> Memory:
    """Of whatever NICs a test gives views of."""
    return Memory(table, in_force, nics=defaultdict(lambda: NicMemory(NIC)))


def key(number: int) -> FlowKey:
    """Flow `number`: 10.0.0.1:443 from 10.1.x.x:1000."""
    return FlowKey(Protocol.TCP, b"\x0a\0\0\1", 443, b"\x0a\1" + number.to_bytes(2, "big"), 1000)


def flow(number: int, **changes: Any) -> Flow:
    """An entry for flow `number`, steered nowhere unless told."""
    plain = Flow(
        key=key(number), cookie=1000 + number, nic="nic", state=FlowState.WANTED, app_cpu=0,
        thread=THREAD, target_queue=None, target_cpu=None, location=None, rx_queue=None,
        rx_cpu=None, bytes=0, used_ns=0, moved_ns=0, rule_name="rest", why=Code.UNSAID(),
    )  # fmt: skip
    return plain._replace(**changes)


def seen(number: int, app_cpu: int, **changes: Any) -> SocketSeen:
    """Flow `number` used on `app_cpu`, its packets arriving on CPU 3."""
    plain = SocketSeen(
        at_ns=0, cookie=1000 + number, key=key(number), app_cpu=app_cpu, thread=THREAD,
        napi_id=103, rx_cpu=3, bytes=1 << 20, off_since_ns=0, born_ns=0,
    )  # fmt: skip
    return plain._replace(**changes)
