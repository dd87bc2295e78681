# SPDX-License-Identifier: GPL-2.0-or-later
"""Settings of NICs and of the whole machine, and irqbalance."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from atfnd.engine import command as asked
from atfnd.engine import event as told
from atfnd.model import Ban, Bans, HostSetting, NicStats, QueueStats
from atfnd.model.nic import RSS_KEY
from atfnd.model.softirq_budget import PACKETS
from tests.cases.given import STRICT, nic, policy
from tests.cases.machine import Machine

REST = frozenset({41, 42, 43})
PID, NONE = 7, Bans((), frozenset(), frozenset())
IRQS = nic(queues=tuple(replace(queue, irq=40 + queue.index) for queue in nic().queues))


def balanced(*, bans: Bans = NONE) -> Machine:
    machine = Machine(policy(), IRQS)
    machine.tell(told.BalancersFound(frozenset({PID}), bans))
    return machine


def asks(machine: Machine) -> list[asked.AskBalancer]:
    return [each for each in machine.commands if isinstance(each, asked.AskBalancer)]


def test_irqbalance_is_asked_to_leave_interrupts_alone_beside_those_it_does() -> None:
    """Row 61. Then what it moved before is looked at."""
    machine = balanced()
    assert asked.ReadBalancer(PID) in machine.commands
    machine.tell(told.BalancerRead(PID, frozenset({40, 90}), NONE))
    [ask] = asks(machine)
    assert ask == asked.AskBalancer(PID, frozenset({40, 90}), {"nic": REST}, ())
    machine.tell(told.BalancerAsked(ask, None))
    assert asked.LookAtInterrupts("nic", REST) in machine.commands


def test_what_another_program_had_it_move_again_is_not_asked_for() -> None:
    """Row 61."""
    bans = Bans(tuple(Ban(PID, "nic", irq) for irq in (40, 41, 42, 43)), frozenset(), frozenset())
    machine = balanced(bans=bans)
    machine.tell(told.BalancerRead(PID, REST, bans))
    assert asks(machine) == []
    assert asked.ForgetBan(Ban(PID, "nic", 40), theirs=True) in machine.commands
    assert machine.said[-1] == "manual"


def budgeted(*, armed: bool = True) -> Machine:
    machine = Machine(policy(host={"softirq_budget": {"packets": 2}}), armed=armed)
    machine.tell(told.HostSettingsDue({PACKETS: HostSetting("300")}))
    return machine


def written(machine: Machine) -> list[str | None]:
    every = (each for each in machine.commands if isinstance(each, asked.WriteHostSetting))
    return [each.action.value for each in every]


@pytest.mark.parametrize(("armed", "values"), [(True, ["2"]), (False, [])])
def test_the_softirq_budget_is_written_while_a_nic_is_armed(armed: bool, values: list[str]) -> None:
    """Row 62."""
    assert written(budgeted(armed=armed)) == values


def test_a_refused_value_is_not_tried_again_until_an_order() -> None:
    """Row 62."""
    machine, found = budgeted(), {PACKETS: HostSetting("300")}
    machine.tell(told.HostSettingRefused(PACKETS, "2", "refused"))
    machine.tell(told.HostSettingsDue(found))
    assert written(machine) == ["2"]
    machine.tell(told.HostSettingsDue(found, again=True))
    assert written(machine) == ["2", "2"]


def test_the_softirq_budget_goes_back_when_nothing_asks_for_it() -> None:
    """Row 62. What another program wrote is left alone."""
    machine = budgeted()
    machine.tell(told.HostSettingsDue({PACKETS: HostSetting("9", "300", changed=True)}))
    assert asked.LeaveHostSetting(PACKETS) in machine.commands
    machine.reloads(policy())
    machine.tell(told.HostSettingsDue({PACKETS: HostSetting("2", "300")}))
    assert isinstance(machine.commands[-1], asked.PutBackHostSetting)


SYMMETRIC = policy(interfaces=[{"match": {"name": "*"}, "rss_hash": "symmetric"}])
KEYED = nic(settings={RSS_KEY: "01" * 40})


def test_a_symmetric_key_is_written_where_it_is_asked_for_and_goes_back() -> None:
    """Row 62."""
    machine = Machine(SYMMETRIC, KEYED)
    assert machine.begun == [f"{RSS_KEY} = {'6d5a' * 20}"]
    machine.reloads(policy())
    back = machine.met(originals={RSS_KEY: "01" * 40})
    assert machine.tell(*back) == [f"{RSS_KEY} = {'01' * 40}"]


def test_a_key_that_brings_nearly_all_to_one_queue_is_taken_back() -> None:
    """Row 62. Until resume."""
    spread = replace(nic(), rss=replace(KEYED.rss, table=(0, 1, 2, 3) * 32)) if KEYED.rss else KEYED
    machine = Machine(SYMMETRIC, replace(KEYED, rss=spread.rss))
    for packets in ((0, 0, 0, 0), (90_000, 10, 10, 10)):
        counted = tuple(QueueStats(at, n, 0, None, None) for at, n in enumerate(packets))
        machine.reads(stats=NicStats(counted, None))
        machine.tell(told.SpreadRead("nic", {RSS_KEY: "01" * 40}))
    assert machine.begun[-1] == f"{RSS_KEY} = {'01' * 40}"
    assert machine.later(5) == []


def test_queues_are_received_as_the_rule_of_their_owner_asks() -> None:
    """Row 63. Without the owner, as they were found."""
    found = {f"napi-thread:{queue}": "0" for queue in range(4)}
    machine = Machine(policy({**STRICT, "reception": "busy"}), nic(settings=found))
    machine.uses(1, 1)
    assert machine.later(3) == ["napi-thread:1 = 2"]
    assert machine.closes(1) == ["delete 1"]
    assert machine.later(5) == ["napi-thread:1 = 0"]


def test_a_cpu_is_left_for_others_than_busy_queues() -> None:
    """Row 63."""
    every = policy(interfaces=[{"match": {"name": "*"}, "reception": "busy"}])
    found = {f"napi-thread:{queue}": "0" for queue in range(4)}
    machine = Machine(every, nic(settings=found))
    assert machine.begun == [f"napi-thread:{queue} = 2" for queue in range(3)]


def test_a_kernel_before_6_13_has_one_value_for_all_queues() -> None:
    """Row 63."""
    every = policy(interfaces=[{"match": {"name": "*"}, "reception": "interrupt"}])
    machine = Machine(every, nic(settings={"defer-hard-irqs": "7", "gro-flush-timeout": "9"}))
    assert machine.begun == ["gro-flush-timeout = 0", "defer-hard-irqs = 0"]


def test_a_setting_that_is_refused_is_tried_ever_later() -> None:
    """Row 63."""
    every = policy(interfaces=[{"match": {"name": "*"}, "reception": "interrupt"}])
    machine = Machine(every)
    machine.answer = errno.EPERM
    machine.reads(settings={"defer-hard-irqs:0": "7"})
    tries = [machine.later(10) for _ in range(4)]
    assert tries[0] == ["defer-hard-irqs:0 = 0"] * 3
    assert [len(each) for each in tries] == [3, 2, 0, 1]
