# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule of the policy a change in the log names, and what was before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.daemon.changes import source_of, tell
from atfnd.model import (
    Action,
    ActionKind,
    Device,
    InterfaceRule,
    Outcome,
    Policy,
    SoftirqBudget,
)
from atfnd.model.reason import Code
from atfnd.serve.log.event_log import EventLog
from tests.values import NIC, RULE, key

RULES = [
    InterfaceRule("eth*|!eth0", "f:1", True, None, 0, driver="igb"),
    InterfaceRule("eth1|ens1", "f:2", True, None, 0),
    InterfaceRule("*", "f:3", False, None, 0),
]
POLICY = Policy(tuple(RULES), (RULE,), "auto", 16, 0, ())


@pytest.mark.parametrize(
    ("name", "driver", "source"),
    [
        ("eth1", "igb", "f:1"),
        ("eth1", "ice", "f:2"),
        ("eth1", None, "f:2"),
        ("ens1", "igb", "f:2"),
        ("eth0", "igb", "f:3"),
    ],
)
def test_a_change_of_an_interface_names_the_rule_that_is_for_it(
    name: str, driver: str | None, source: str
) -> None:
    nic = replace(NIC, name=name, device=Device(driver=driver))
    change = Action.of_setting(name, "rss", "default")
    assert source_of(change, nic, POLICY) == source
    assert source_of(change, None, POLICY) is None


def test_a_change_of_a_setting_says_what_was_before_it() -> None:
    """The NIC may have been read again since."""
    log, change = EventLog(), Action.of_setting("nic", "gro-flush-timeout:0", "20000")
    read_since = replace(NIC, settings={"gro-flush-timeout:0": "20000"})
    for number, nic in enumerate((read_since, None)):
        tell(log, Outcome(change, 0, 0, None, "as planned", before="0"), nic, POLICY)
        [event] = log.after(number, 9)
        assert (event.old, event.new) == ("0", "20000")


def test_a_change_of_a_flow_or_of_the_machine_names_where_the_policy_asks_for_it() -> None:
    insert = Action(ActionKind.INSERT, "nic", key(1), None, None, 1, Code.UNSAID(), RULE.name)
    assert source_of(insert, NIC, POLICY) == RULE.source
    assert source_of(replace(insert, rule_name="gone"), NIC, POLICY) is None
    budget = Action.of_setting("nic", "netdev-budget", "2")
    asks = replace(POLICY, softirq_budget=SoftirqBudget(packets=2, source="f:9"))
    assert source_of(budget, NIC, asks) == "f:9"
    assert source_of(budget, NIC, POLICY) is None
