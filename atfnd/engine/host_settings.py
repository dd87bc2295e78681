# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of the whole machine that a policy asks for: the budget of the receive softirq. Pure.

1. They are written while some NIC is armed. As long as none is, they stay as they are, until an
   operator asks for an undo.
2. What the policy asks for no more goes back to what it was before our first write.
3. What another program wrote over ours is left alone until `atfnctl resume`.
4. What the kernel refused is tried again when a NIC is armed or resumed, or when the policy asks
   for another value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atfnd.engine.command import LeaveHostSetting, Log, PutBackHostSetting, WriteHostSetting
from atfnd.engine.table.memory import Memory
from atfnd.model import Action, HostSetting, HostStanding, Plan
from atfnd.model.reason import Code, Why

__all__ = ["due", "ended", "planned", "shown"]

_UNKNOWN = "the kernel shows it in its first network namespace only"
_POLICY = "the policy"

Known = Mapping[str, HostSetting]
Commands = Iterator[WriteHostSetting | PutBackHostSetting | LeaveHostSetting | Log]


def due(read: Known, memory: Memory, *, again: bool) -> Commands:
    """What to do now. `again`: also what the kernel has refused."""
    known = memory.host
    wanted, armed = memory.in_force.softirq_budget.values, _armed(memory)
    known.settings = read
    for name, (value, _) in list(known.refused.items()):
        if again or value != wanted.get(name):
            del known.refused[name]
    for name, each in read.items():
        if each.changed:
            yield LeaveHostSetting(name)
            yield Log("manual", f"{name} is {each.now}", Code.HOST_MANUAL())
        elif name not in wanted:
            if armed is not None or not memory.nics:
                yield from _back(name, each, memory, Code.UNASKED(_POLICY))
        elif armed is not None and _differs(each, wanted[name]) and name not in known.refused:
            yield WriteHostSetting(_action(armed, name, each, wanted[name]))


def ended(read: Known, memory: Memory) -> Commands:
    """Put back what no armed NIC needs, also what the kernel has refused to put back before."""
    known = memory.host
    known.settings = read
    known.refused.clear()
    wanted = memory.in_force.softirq_budget.values if _armed(memory) is not None else {}
    for name, each in read.items():
        if name not in wanted:
            yield from _back(name, each, memory, Code.ASKED_FOR())


def planned(nic: str, memory: Memory) -> Plan:
    """What would be written if this NIC is armed, as the last look found it."""
    wanted = memory.in_force.softirq_budget.values
    return tuple(
        _action(nic, name, each, wanted[name])
        for name, each in memory.host.settings.items()
        if name in wanted and not each.changed and _differs(each, wanted[name])
    )


def shown(memory: Memory) -> tuple[HostStanding, ...]:
    """How each setting stands, as the last look found it."""
    return tuple(_standing(name, each, memory) for name, each in memory.host.settings.items())


def _standing(name: str, each: HostSetting, memory: Memory) -> HostStanding:
    wanted = memory.in_force.softirq_budget.values.get(name)
    state, why = "left", ""
    if name in memory.host.refused:
        state, why = "refused", memory.host.refused[name][1]
    elif wanted is None:
        if each.original is not None:
            state, why = "set", str(Code.HOST_GOES_BACK(Code.UNASKED(_POLICY)))
    elif each.now is None:
        state, why = "unknown", _UNKNOWN
    elif each.changed or each.manual:
        state, why = "manual", str(Code.HOST_MANUAL())
    elif each.now == wanted:
        state = "set"
    else:
        unarmed = _armed(memory) is None
        state, why = "wanted", "no interface is armed" if unarmed else "it is about to be written"
    return HostStanding(name, state, each.now, wanted, each.original, why)


def _armed(memory: Memory) -> str | None:
    """A NIC that is armed: the first by name."""
    return min((name for name, nic in memory.nics.items() if nic.view.armed), default=None)


def _differs(each: HostSetting, wanted: str) -> bool:
    return each.now not in (None, wanted) and not each.manual


def _action(nic: str, name: str, each: HostSetting, value: str) -> Action:
    why = Code.HOST_ASKED(each.now)
    return Action.of_setting(nic, name, value, why)


def _back(name: str, each: HostSetting, memory: Memory, why: Why) -> Iterator[PutBackHostSetting]:
    if each.original is not None and name not in memory.host.refused:
        yield PutBackHostSetting(name, why)
