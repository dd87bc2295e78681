# SPDX-License-Identifier: GPL-2.0-or-later
"""Our filters out of a NIC and back in: in values, and by a daemon on the lab."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.engine.table.flow_table import FlowTable
from atfnd.engine.table.memory import Memory
from atfnd.model import ActionKind, FlowState, Match, Outcome, Plan
from atfnd.model.reason import Code
from tests.applications import delivered
from tests.bed import a_bed
from tests.labs import Lab
from tests.values import NIC, flow, key, memory_of, one_rule

PAUSED = replace(NIC, armed=False, paused=True)


def steered_flows(*numbers: int) -> Memory:
    """One rule each, on queue 1; all on CPU 1."""
    memory = memory_of(FlowTable(100), one_rule(0, 10_000))
    for number in numbers:
        place = {"state": FlowState.STEERED, "app_cpu": 1, "target_queue": 1, "target_cpu": 1}
        memory.table.put(flow(number, location=number, **place))
    return memory


def settle(plan: Plan, memory: Memory, code: int = 0) -> None:
    for action in plan:
        audit.record(Outcome(action, 5, code, action.location, "refused" * bool(code)), memory)


@given(st.sets(st.integers(1, 50), max_size=20))
def test_every_rule_goes_and_every_flow_comes_back(numbers: set[int]) -> None:
    memory = steered_flows(*numbers)
    plan = retire.withdraw(NIC, memory, Code.KERNEL("paused"))
    assert {(a.kind, a.key, a.location) for a in plan} == {
        (ActionKind.DELETE, key(n), n) for n in numbers
    }
    settle(plan, memory)
    assert memory.table.filters_in("nic") == 0
    assert {(f.key, f.state, f.location) for f in memory.table} == {
        (key(n), FlowState.OBSERVED, None) for n in numbers
    }
    assert steer.take_up(PAUSED, memory, 6) == ()
    back = steer.take_up(NIC, memory, 7)
    assert {(a.kind, a.key, a.new) for a in back} == {
        (ActionKind.INSERT, key(n), 1) for n in numbers
    }


def test_another_nics_rules_stay() -> None:
    memory = steered_flows(1)
    assert retire.withdraw(replace(NIC, name="other"), memory, Code.KERNEL("paused")) == ()
    assert [f.state for f in memory.table] == [FlowState.STEERED]


def test_a_rule_that_cannot_be_deleted_is_still_ours() -> None:
    memory = steered_flows(1)
    settle(retire.withdraw(NIC, memory, Code.KERNEL("paused")), memory, errno.EBUSY)
    (left,) = memory.table
    assert (left.state, left.location, str(left.why)) == (FlowState.STEERED, 1, "refused")


def test_a_rule_somebody_deleted_meanwhile_is_gone_all_the_same() -> None:
    memory = steered_flows(1)
    settle(retire.withdraw(NIC, memory, Code.KERNEL("paused")), memory, errno.ENOENT)
    (left,) = memory.table
    assert (left.state, left.location) == (FlowState.OBSERVED, None)


def test_a_flow_that_ends_during_a_pause_ends() -> None:
    memory = steered_flows(1)
    settle(retire.withdraw(NIC, memory, Code.KERNEL("paused")), memory)
    assert retire.gone(1001, memory) == ()
    assert len(memory.table) == 0


def test_a_pause_and_its_end(shared_lab: Lab, tmp_path: Path) -> None:
    """What is not ours stays; while paused nothing is written; afterwards all is as before."""
    name = shared_lab.nic.name
    foreign = shared_lab.nic.insert(Match.of(key(7)), 0)
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        apps = bed.apps.tcp(), bed.apps.udp_connected()
        for app in apps:
            bed.steered(app)
        for _ in range(2):  # a second one changes nothing
            said = bed.daemon.ctl("pause", name).stdout
            assert said == f"{name} is paused: nothing of ours is in it\n"
            assert [rule.location for rule in shared_lab.nic.filters()] == [foreign]
        for app in apps:
            row = bed.row(app, lambda row: row["state"] == "observed", "is only observed")
            assert row["filter"] is None
        explained = bed.daemon.ctl("explain", f"cookie:{row['cookie']}").stdout.splitlines()
        assert explained[-1] == f"do: atfnctl resume {name}"
        assert bed.daemon.ctl("resume", name).stdout == f"{name} is resumed\n"
        for app in apps:
            bed.steered(app)
            delivered(bed.meter, app)
            app.migrate()
            bed.steered(app)
            delivered(bed.meter, app)
        assert foreign in {rule.location for rule in shared_lab.nic.filters()}
        kinds = [event["kind"] for event in bed.daemon.events("pause", "resume")]
        assert kinds == ["pause", "resume"]


def test_rules_left_by_disarming_go_with_a_pause(shared_lab: Lab, tmp_path: Path) -> None:
    name = shared_lab.nic.name
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        app = bed.apps.tcp()
        bed.steered(app)
        assert bed.daemon.ctl("disarm", name).returncode == 0
        assert bed.rule(app) is not None
        assert bed.daemon.ctl("pause", name).returncode == 0
        assert bed.rule(app) is None
        said = bed.daemon.ctl("resume", name).stdout
        assert said == f"{name} is resumed; it is not armed, as before\n"
        assert bed.rule(app) is None
        assert bed.daemon.ctl("arm", name).returncode == 0
        bed.steered(app)
