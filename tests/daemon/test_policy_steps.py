# SPDX-License-Identifier: GPL-2.0-or-later
"""Another policy arms and disarms interfaces, where no operator has said otherwise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.daemon.interface_rules import Given
from atfnd.model import InterfaceRule, Policy
from tests.daemon.simulated import simulated, text_of
from tests.values import NIC, RULE

__all__: list[str] = []


@pytest.mark.parametrize(
    ("before", "order", "after", "stands"),
    [
        (False, None, True, (True, False)),
        (True, None, False, (False, False)),
        (False, "disarm", True, (False, False)),
        (True, "arm", False, (True, False)),
        (True, "pause", True, (False, True)),
    ],
)
def test_the_policy_arms_and_disarms_where_no_operator_has(
    tmp_path: Path, before: bool, order: str | None, after: bool, stands: tuple[bool, bool]
) -> None:
    with simulated(tmp_path, text=text_of(armed=before)) as bed:
        if order is not None:
            bed.order(order)
        bed.reload(text_of(armed=after))
        assert bed.stands() == {"eth0": stands}


def test_after_a_pause_it_stands_as_the_policy_says_by_then(tmp_path: Path) -> None:
    with simulated(tmp_path, text=text_of()) as bed:
        bed.order("pause")
        bed.reload(text_of(armed=False))
        bed.order("resume")
        assert bed.stands() == {"eth0": (False, False)}


def test_what_is_to_be_disarmed_is_so_before_another_nic_is_armed(tmp_path: Path) -> None:
    """Arming may fail, or take long."""
    only_first = text_of().replace("name: '*' }, armed: true", "name: eth0 }, armed: true")
    with simulated(tmp_path, nics=2, text=only_first.replace("eth0", "eth1")) as bed:
        bed.reload(only_first)
        assert [(each.kind, each.nic) for each in bed.said("arm", "disarm")] == [
            ("disarm", "eth1"), ("arm", "eth0"),
        ]  # fmt: skip


def test_what_was_armed_on_the_command_line_stays_armed() -> None:
    leaves = InterfaceRule("*", "test:1", armed=False, filters_max=None, filters_reserve=0)
    policy = Policy((leaves,), (RULE,), "auto", 64, 0, ())
    given = Given(lambda: policy, ("a*",))
    assert [given.armed(policy, replace(NIC, name=name)) for name in ("a1", "b")] == [True, False]
