# SPDX-License-Identifier: GPL-2.0-or-later
"""Actions as an admin would type them; and that what is foreseen is what arming then does."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import (
    Action,
    ActionKind,
    Actuator,
    Filter,
    FlowKey,
    Match,
    NicView,
    Protocol,
    Queue,
)
from atfnd.model.reason import Code
from atfnd.nic.location import choose
from atfnd.program.shell_commands import ShellCommands, shell_commands
from tests.values import NIC, key

ETH = replace(NIC, name="eth0", caps=replace(NIC.caps, location_any=False, filter_slots=64))
ANY = replace(ETH, caps=replace(ETH.caps, location_any=True))
SHORT_GAP = replace(ETH, caps=replace(ETH.caps, actuator=Actuator.SHORT_GAP))
LAB = replace(NIC, name="lab:lab", caps=replace(NIC.caps, driver="lab"))
WORDS = "flow-type tcp4 src-ip 10.1.0.1 dst-ip 10.0.0.1 src-port 1000 dst-port 443"
UDP6 = FlowKey(Protocol.UDP, bytes(16), 53, bytes(16), 0)


def rule(kind: ActionKind, location: int | None = None, to: FlowKey | None = None) -> Action:
    new = None if kind is ActionKind.DELETE else 3
    return Action(kind, "eth0", to or key(1), location, 1, new, Code.KERNEL("why"), "rest")


def setting(name: str, value: str) -> Action:
    return Action.of_setting("eth0", name, value)


def queue_cpu(queue: int) -> Action:
    return Action(ActionKind.QUEUE_CPU, "eth0", None, None, 1, 4, Code.KERNEL("why"), "", queue)


def typed(action: Action, nic: NicView = ETH) -> tuple[str, ...]:
    (hand,) = shell_commands((action,), nic)
    assert (hand.cannot is None) == bool(hand.commands)
    return hand.commands


@pytest.mark.parametrize(
    ("action", "nic", "commands"),
    [
        (rule(ActionKind.INSERT), ETH, [f"ethtool -N eth0 {WORDS} action 3 loc 59"]),
        (rule(ActionKind.INSERT), ANY, [f"ethtool -N eth0 {WORDS} action 3"]),
        (
            rule(ActionKind.INSERT, to=UDP6),
            ANY,
            ["ethtool -N eth0 flow-type udp6 dst-port 53 action 3"],
        ),
        (rule(ActionKind.REWRITE, 17), ETH, [f"ethtool -N eth0 {WORDS} action 3 loc 17"]),
        (
            rule(ActionKind.REWRITE, 17),
            SHORT_GAP,
            ["ethtool -N eth0 delete 17", f"ethtool -N eth0 {WORDS} action 3 loc 17"],
        ),
        (
            rule(ActionKind.REWRITE, 17),
            ANY,
            ["ethtool -N eth0 delete 17", f"ethtool -N eth0 {WORDS} action 3"],
        ),
        (rule(ActionKind.DELETE, 17), ETH, ["ethtool -N eth0 delete 17"]),
        (setting("priv:flow-director-atr", "off"), ETH,
         ["ethtool --set-priv-flags eth0 flow-director-atr off"]),
        (setting("rps-cpus:2", ""), ETH, ["echo 0 > /sys/class/net/eth0/queues/rx-2/rps_cpus"]),
        (setting("xps-cpus:1", "0,33"), ETH,
         ["echo 2,00000001 > /sys/class/net/eth0/queues/tx-1/xps_cpus"]),
        (setting("rps-flow-cnt:0", "4096"), ETH,
         ["echo 4096 > /sys/class/net/eth0/queues/rx-0/rps_flow_cnt"]),
        (setting("rps-sock-flow-entries", "32768"), ETH,
         ["echo 32768 > /proc/sys/net/core/rps_sock_flow_entries"]),
        (setting("rss-key", "6d5a6d5a"), ETH, ["ethtool -X eth0 hkey 6d:5a:6d:5a"]),
        (setting("rss", "0 1 2 0 1 2"), ETH, ["ethtool -X eth0 equal 3"]),
        (setting("rss", "0 0 0 2 3 3"), ETH, ["ethtool -X eth0 weight 3 0 1 2"]),
        (queue_cpu(1), ETH, ["taskset -pc 4 1001"]),
        (queue_cpu(0), replace(ETH, queues=(Queue(0, 1, 57, None, False, None),)),
         ["echo 4 > /proc/irq/57/smp_affinity_list"]),
        (queue_cpu(1), LAB, ["taskset -pc 4 1001"]),
    ],
)  # fmt: skip
def test_an_action_in_the_words_of_a_shell(
    action: Action, nic: NicView, commands: list[str]
) -> None:
    assert list(typed(action, nic)) == commands


@pytest.mark.parametrize(
    ("action", "nic", "word"),
    [
        (rule(ActionKind.INSERT), LAB, "emulated"),
        (setting("rss", "0 1"), LAB, "emulated"),
        (setting("rss", "0 2 1 0"), ETH, "single entries"),
        (queue_cpu(0), replace(ETH, queues=(Queue(0, 1, None, None, None, None),)), "no interrupt"),
    ],
)
def test_where_there_is_no_command_it_says_why(action: Action, nic: NicView, word: str) -> None:
    (hand,) = shell_commands((action,), nic)
    assert hand.commands == ()
    assert hand.cannot is not None
    assert word in hand.cannot


@given(st.sets(st.integers(0, 63)), st.integers(1, 70))
def test_locations_are_those_that_the_nic_would_be_asked_for(used: set[int], count: int) -> None:
    held = [Filter(at, Match.of(key(500 + at)), 0) for at in sorted(used)]
    plan = tuple(rule(ActionKind.INSERT, to=key(n)) for n in range(count))
    free = sum(1 << at for at in range(64) if at not in used)
    for hand in shell_commands(plan, replace(ETH, filters=tuple(held))):
        wanted = choose(free, 64, False, lambda at: False)
        if wanted is None:
            assert " loc " not in hand.commands[0]
            continue
        free &= ~(1 << wanted)
        assert hand.commands[0].endswith(f" loc {wanted}")


def test_a_location_that_a_delete_frees_is_used_again() -> None:
    held = tuple(Filter(at, Match.of(key(500 + at)), 0) for at in range(64))
    plan = rule(ActionKind.DELETE, 7, key(507)), rule(ActionKind.INSERT)
    assert shell_commands(plan, replace(ETH, filters=held))[1] == ShellCommands(
        (f"ethtool -N eth0 {WORDS} action 3 loc 7",)
    )
