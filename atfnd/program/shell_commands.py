# SPDX-License-Identifier: GPL-2.0-or-later
"""A plan as the commands that an admin would type for it: ethtool(8), taskset(1), echo. Pure.

They do what `program.actuator` would have the kernel do, filter locations included. Typed in a
shell, they have neither its journal nor its moves, which keep packets in order.
"""

from __future__ import annotations

import ipaddress
from itertools import groupby
from shlex import quote
from typing import NamedTuple

from atfnd.kernel.interrupts.irq import affinity_file
from atfnd.kernel.interrupts.packet_steering import steering_file
from atfnd.kernel.interrupts.softirq_budget import budget_file
from atfnd.model import (
    BUDGET_SETTINGS,
    Action,
    ActionKind,
    Actuator,
    Match,
    NicView,
    Plan,
    Protocol,
)
from atfnd.model.nic import RSS_KEY
from atfnd.nic.location import choose, is_wide

__all__ = ["ShellCommands", "shell_commands"]

_LAB = "the lab NIC is emulated: no command reaches its {}, atfnd alone writes them"


class ShellCommands(NamedTuple):
    """The commands of one action, in order; or why there are none."""

    commands: tuple[str, ...]
    cannot: str | None = None


def shell_commands(plan: Plan, nic: NicView) -> list[ShellCommands]:
    """One for each action of this NIC, as they are carried out one after the other. `nic` has its
    filters as they are now."""
    places = _Places(nic)
    return [_commands(action, nic, places) for action in plan]


class _Places:
    """The filter table, as it changes with the plan."""

    def __init__(self, nic: NicView) -> None:
        slots = nic.caps.filter_slots
        self._slots = None if nic.caps.location_any else slots
        self._held = {each.location: each.match for each in nic.filters}

    def take(self, match: Match) -> int | None:
        """Where `Nic.insert` would put a new filter; None: the NIC or its driver decides."""
        if self._slots is None:
            return None
        free = (1 << self._slots) - 1
        for location in self._held:
            free &= ~(1 << location)
        chosen = choose(free, self._slots, is_wide(match), self._is_wide)
        if chosen is not None:
            self._held[chosen] = match
        return chosen

    def leave(self, location: int) -> None:
        self._held.pop(location, None)

    def _is_wide(self, location: int) -> bool | None:
        match = self._held[location]
        return None if match is None else is_wide(match)


def _commands(action: Action, nic: NicView, places: _Places) -> ShellCommands:
    lab = nic.caps.driver == "lab"
    match action.kind:
        case ActionKind.INSERT | ActionKind.REWRITE | ActionKind.DELETE:
            return (
                ShellCommands((), _LAB.format("filters")) if lab else _filter(action, nic, places)
            )
        case ActionKind.QUEUE_CPU:
            return _queue_cpu(action, nic)
        case ActionKind.SETTING if action.setting in BUDGET_SETTINGS:
            file = str(budget_file(action.setting or ""))
            return ShellCommands((f"echo {action.value} > {quote(file)}",))
        case ActionKind.SETTING:
            return ShellCommands((), _LAB.format("table")) if lab else _setting(action, nic)


def _filter(action: Action, nic: NicView, places: _Places) -> ShellCommands:
    ethtool = f"ethtool -N {quote(nic.name)}"
    delete = f"{ethtool} delete {action.location}"
    if action.key is None:
        raise ValueError(f"a filter of no flow: {action}")
    match = Match.of(action.key)
    if action.kind is ActionKind.DELETE:
        places.leave(action.location or 0)
        return ShellCommands((delete,))
    words = f"{ethtool} {_words(match)} action {action.new}"
    if action.kind is ActionKind.REWRITE:
        if nic.caps.location_any:
            return ShellCommands((delete, words))
        insert = f"{words} loc {action.location}"
        in_place = nic.caps.actuator is Actuator.IN_PLACE
        return ShellCommands((insert,) if in_place else (delete, insert))
    location = places.take(match)
    return ShellCommands((words if location is None else f"{words} loc {location}",))


def _words(match: Match) -> str:
    """`flow-type tcp4 src-ip 10.0.0.1 ...`; what is open to any is left out."""
    words = [f"flow-type {Protocol(match.protocol or 0).name.lower()}{match.family}"]
    for name, address in (("src-ip", match.src), ("dst-ip", match.dst)):
        if address is not None:
            words.append(f"{name} {ipaddress.ip_address(address)}")
    for name, port in (("src-port", match.src_port), ("dst-port", match.dst_port)):
        if port is not None:
            words.append(f"{name} {port}")
    return " ".join(words)


def _queue_cpu(action: Action, nic: NicView) -> ShellCommands:
    queue = next((each for each in nic.queues if each.index == action.queue), None)
    if queue is not None and queue.pid is not None:
        return ShellCommands((f"taskset -pc {action.new} {queue.pid}",))
    if queue is not None and queue.irq is not None:
        return ShellCommands((f"echo {action.new} > {affinity_file(queue.irq)}",))
    return ShellCommands((), f"queue {action.queue} has no interrupt and no NAPI thread")


def _setting(action: Action, nic: NicView) -> ShellCommands:
    name, value = action.setting or "", action.value or ""
    kind, _, rest = name.partition(":")
    if name == "rss":
        return _table([int(each) for each in value.split()], nic)
    if name == RSS_KEY:
        key = bytes.fromhex(value).hex(":")
        return ShellCommands((f"ethtool -X {quote(nic.name)} hkey {key}",))
    if kind == "priv":
        return ShellCommands((f"ethtool --set-priv-flags {quote(nic.name)} {quote(rest)} {value}",))
    file, text = steering_file(nic.name, name, value)
    return ShellCommands((f"echo {text} > {quote(file)}",))


def _table(table: list[int], nic: NicView) -> ShellCommands:
    """`ethtool -X` knows round robin, and runs of entries in the order of their queues."""
    ethtool = f"ethtool -X {quote(nic.name)}"
    count = max(table) + 1
    if table == [entry % count for entry in range(len(table))]:
        return ShellCommands((f"{ethtool} equal {count}",))
    if table != sorted(table):
        return ShellCommands((), "ethtool -X cannot point single entries of the table; atfnd can")
    runs = {queue: len([*run]) for queue, run in groupby(table)}
    weights = " ".join(str(runs.get(queue, 0)) for queue in range(count))
    return ShellCommands((f"{ethtool} weight {weights}",))
