# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the whole machine: what is written, left alone and put back, and how it is said."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from atfnd.engine import host_settings
from atfnd.engine.command import (
    Command,
    LeaveHostSetting,
    Log,
    PutBackHostSetting,
    WriteHostSetting,
)
from atfnd.engine.engine import Engine
from atfnd.engine.event import HostSettingRefused, HostSettingsRead
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import HostSetting, Mode, NicView, SoftirqBudget
from atfnd.model.softirq_budget import PACKETS, TIME
from tests.values import NIC, memory_of, one_rule

__all__: list[str] = []

ARMED, UNARMED = replace(NIC, armed=True), replace(NIC, armed=False)
BOTH = SoftirqBudget(2, 20_000)
FOUND = {PACKETS: HostSetting("300"), TIME: HostSetting("8000")}
OURS = {PACKETS: HostSetting("2", "300"), TIME: HostSetting("20000", "8000")}


def memory(nic: NicView | None = ARMED, asked: SoftirqBudget = BOTH) -> Memory:
    known = memory_of(FlowTable(16), one_rule(0, 1 << 60, Mode.STRICT))
    known.nics["nic"].view = nic or NIC
    if nic is None:
        known.nics.clear()
    asks(known, asked)
    return known


def asks(known: Memory, budget: SoftirqBudget) -> None:
    known.in_force = replace(known.in_force, softirq_budget=budget)


def due(known: Memory, read: dict[str, HostSetting], *, again: bool = False) -> list[str]:
    return in_short(host_settings.due(read, known, again=again))


def ended(known: Memory, read: dict[str, HostSetting]) -> list[str]:
    return in_short(host_settings.ended(read, known))


def in_short(commands: Iterable[Command]) -> list[str]:
    found = []
    for each in commands:
        match each:
            case WriteHostSetting(action):
                found.append(f"{action.setting} = {action.value}")
            case PutBackHostSetting(setting, _):
                found.append(f"{setting} back")
            case LeaveHostSetting(setting):
                found.append(f"{setting} left")
            case Log(kind, what):
                found.append(f"{kind}: {what}")
    return found


def states(known: Memory) -> list[str]:
    return [each.state for each in host_settings.shown(known)]


def test_an_undo_puts_back_what_no_armed_nic_needs() -> None:
    assert ended(memory(), OURS) == []
    assert ended(memory(asked=SoftirqBudget(packets=2)), OURS) == [f"{TIME} back"]
    assert ended(memory(UNARMED), OURS) == [f"{PACKETS} back", f"{TIME} back"]
    assert ended(memory(UNARMED), FOUND) == []


def test_what_another_program_wrote_is_left_alone() -> None:
    known, theirs = memory(), {**OURS, PACKETS: HostSetting("600", "300", changed=True)}
    assert due(known, theirs) == [f"{PACKETS} left", f"manual: {PACKETS} is 600"]
    left = {**OURS, PACKETS: HostSetting("600", manual=True)}
    assert due(known, left) == []
    assert states(known) == ["manual", "set"]
    assert host_settings.planned("nic", known) == ()
    asks(known, SoftirqBudget())
    assert due(known, theirs)[:2] == [f"{PACKETS} left", f"manual: {PACKETS} is 600"]
    known = memory()
    taken_back = {**OURS, PACKETS: HostSetting("600")}
    assert due(known, taken_back) == [f"{PACKETS} = 2"]


def test_what_the_kernel_refuses_to_put_back_is_tried_again_at_an_undo() -> None:
    known = memory(asked=SoftirqBudget())
    engine = Engine(known)
    for name in OURS:
        engine.handle(HostSettingRefused(name, None, "no"), 0)
    assert due(known, OURS) == []
    assert states(known) == ["refused", "refused"]
    assert ended(known, OURS) == [f"{PACKETS} back", f"{TIME} back"]
    engine.handle(HostSettingsRead(FOUND), 0)
    assert states(known) == ["left", "left"]


def test_a_setting_that_the_kernel_does_not_show_is_not_written() -> None:
    known = memory()
    assert due(known, {PACKETS: HostSetting(None), TIME: HostSetting("8000")}) == [
        f"{TIME} = 20000"
    ]
    assert states(known) == ["unknown", "wanted"]
