# SPDX-License-Identifier: GPL-2.0-or-later
"""Where a flow belongs, and when it is left to RSS."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.engine import event as told
from atfnd.engine.command import HandsOn
from atfnd.model import Distance, FlowState, Protocol, Rss
from tests.cases.given import CPUS, STRICT, nic, policy, thread
from tests.cases.machine import Machine
from tests.values import key

NEAR = [("core", 1, 1), ("llc", 1, 0), ("node", 1, 0), ("smt", 1, 1)]


@pytest.mark.parametrize(("near", "cpu", "queue"), NEAR)
def test_a_flow_goes_as_near_as_its_rule_says(near: str, cpu: int, queue: int) -> None:
    """Row 17. No CPU here has a sibling: then its own."""
    machine = Machine(policy({"placement": {"near": near}}))
    assert machine.uses(1, cpu) == [f"insert 1 to {queue}"]
    flow = machine.flow(1)
    assert flow is not None
    assert (flow.fell_back is not None) == (near == "smt")


def test_a_cpuset_bounds_where_a_flow_may_go() -> None:
    """Row 17."""
    machine = Machine(policy({"placement": {"near": "node"}}))
    assert machine.uses(1, 1, cpusets={1: frozenset({1, 2})}) == ["insert 1 to 1"]
    assert "on its own CPU instead" in machine.why(1)


def test_no_flow_goes_to_an_isolated_cpu() -> None:
    """Row 17."""
    machine = Machine(policy({"placement": {"near": "node"}}))
    machine.cpus = (replace(CPUS[0], isolated=True), *CPUS[1:])
    machine.tell(told.CpusRead(machine.topology))
    assert machine.uses(1, 1) == ["insert 1 to 1"]


def test_a_dedicated_cpu_serves_no_other_rule() -> None:
    """Row 17. Its thread runs there: the flow is left to RSS, and explain says why."""
    apart = {"match": {"ports": [80]}, "placement": {"dedicated": [1]}}
    machine = Machine(policy(apart, {}))
    assert machine.uses(1, 1) == []
    assert "CPU 1 is dedicated to another rule" in machine.why(1)
    assert machine.uses(1, 0) == ["insert 1 to 0"]
    assert machine.uses(2, 0, key=key(2)._replace(local_port=80)) == ["insert 2 to 1"]


def test_a_queue_that_fits_is_kept() -> None:
    """Row 18. The thread moved to where another one would be first."""
    machine = Machine(policy({"placement": {"near": "node"}}))
    machine.cpus = tuple(replace(cpu, llc=(0, 1, 2, 3), node=0) for cpu in CPUS)
    machine.tell(told.CpusRead(machine.topology))
    assert machine.uses(1, 3) == ["insert 1 to 0"]
    machine.later(1)
    assert machine.uses(1, 2) == []
    assert machine.uses(1, 0) == ["rewrite 1 to 1"]


TWO_QUEUES = nic(queues=nic().queues[:2], rss=Rss(bytes(40), (0,) * 128))


def test_a_filter_stays_where_no_queue_is_better() -> None:
    """Row 19. No queue is on that CPU: nothing would be gained."""
    machine = Machine(policy(), TWO_QUEUES)
    assert machine.uses(1, 1) == ["insert 1 to 1"]
    machine.later(1)
    assert machine.uses(1, 2) == []
    assert machine.later(5) == []
    assert machine.queue(1) == 1


def test_a_flow_that_waits_for_a_queue_on_its_cpu_says_so() -> None:
    """Row 19."""
    machine = Machine(policy(), TWO_QUEUES)
    assert machine.uses(1, 2) == []
    assert machine.why(1) == "its thread runs on CPU 2, and no queue is delivered there"


def test_a_flow_that_rss_delivers_right_has_no_filter_and_no_row() -> None:
    """Row 20."""
    machine = Machine()
    assert machine.uses(1, 3) == []
    assert machine.state(1) is None


def test_under_auto_such_a_flow_has_a_filter() -> None:
    """Row 20. Only what has one can be measured."""
    machine = Machine(policy({"placement": "auto"}))
    assert machine.uses(1, 3) == ["insert 1 to 3"]


def test_the_first_socket_keeps_its_5_tuple() -> None:
    """Row 21. One with the same addresses, on another interface."""
    machine = Machine(policy(), nic(), nic("two"))
    machine.uses(1, 1)
    machine.later(1)
    assert machine.uses(2, 2, by=2, on="two", key=key(1)) == []
    assert machine.later(5) == []
    assert machine.queue(1) == 1


def test_a_flow_that_comes_by_a_tunnel_has_no_filter() -> None:
    """Row 21."""
    machine = Machine()
    assert machine.uses(1, 1, tunnel="vxlan0") == []
    assert machine.why(1) == "its packets come by vxlan0, and the NIC sees another 5-tuple"


def test_sockets_that_share_a_udp_port_have_no_filter() -> None:
    """Row 21."""
    machine = Machine()
    udp = key(1)._replace(protocol=Protocol.UDP, remote=bytes(4), remote_port=0)
    assert machine.uses(1, 1, key=udp, group=True) == []
    assert "SO_REUSEPORT" in machine.why(udp)


BUSY, CALM = {0: 5, 1: 100, 2: 0, 3: 0}, {0: 5, 1: 20, 2: 0, 3: 0}


def loaded(machine: Machine, busy: dict[int, int], seconds: int) -> list[str]:
    begun = []
    for _ in range(seconds // 2):
        begun += machine.tell(told.LoadRead(busy)) + machine.later(2)
    return begun


def test_a_full_cpu_has_its_flows_taken_and_later_gets_them_back() -> None:
    """Row 22. After four seconds it is full; after ten of slack it is not."""
    machine = Machine()
    machine.uses(1, 1)
    assert loaded(machine, BUSY, 6) == ["delete 1"]
    assert "CPU 1 is full" in machine.why(1)
    assert machine.uses(2, 1) == []
    assert loaded(machine, CALM, 8) == []
    assert loaded(machine, CALM, 4) == ["insert 1 to 1", "insert 2 to 1"]
    assert machine.said[-1] == "not-full"


def test_a_cpu_that_is_full_again_soon_waits_twice_as_long() -> None:
    """Row 22."""
    machine = Machine()
    machine.uses(1, 1)
    loaded(machine, BUSY, 6)
    loaded(machine, CALM, 12)
    assert loaded(machine, BUSY, 6) == ["delete 1"]
    assert loaded(machine, CALM, 18) == []
    assert loaded(machine, CALM, 4) == ["insert 1 to 1"]


def test_a_rule_may_stay_on_a_full_cpu() -> None:
    """Row 22."""
    machine = Machine(policy({"full_core": "stay"}))
    machine.uses(1, 1)
    assert loaded(machine, BUSY, 6) == []


RFS = {"rps-sock-flow-entries": "0", **{f"rps-flow-cnt:{queue}": "0" for queue in range(4)}}


def handed_on(machine: Machine) -> list[dict[int, int]]:
    return [{**each.cpus} for each in machine.commands if isinstance(each, HandsOn)]


def test_rfs_serves_a_thread_that_wanders_and_ends_after_it() -> None:
    """Row 23. It is switched on for the queue it uses, and off after ten seconds."""
    rules = policy(STRICT, interfaces=[{"match": {"name": "*"}, "unowned": "rfs"}])
    machine = Machine(rules, nic(settings=RFS))
    begun = machine.uses(1, 1, home=Distance.MACHINE, pinned=False)
    assert begun == ["rps-sock-flow-entries = 32768", "rps-flow-cnt:3 = 8192"]
    machine.sockets[1].rate = 0
    assert machine.later(9) == []
    assert machine.later(5) == ["rps-flow-cnt:3 = 0"]


def test_an_owned_queue_has_no_rfs() -> None:
    """Row 23. It comes back as it was found, and the observer hears of both."""
    found = {**RFS, "rps-sock-flow-entries": "4096", "rps-flow-cnt:1": "512"}
    machine = Machine(policy(STRICT), nic(settings=found))
    machine.later(3)
    machine.uses(1, 1)
    assert machine.later(3) == ["rps-flow-cnt:1 = 0"]
    assert machine.closes(1) == ["delete 1"]
    assert machine.later(5) == ["rps-flow-cnt:1 = 512"]
    assert handed_on(machine) == [{101: 1}, {}, {101: 1}]


def test_the_observer_hears_last_of_rfs_that_is_off_already() -> None:
    """Row 23. A queue may have an owner before the first look."""
    found = {**RFS, "rps-sock-flow-entries": "4096", "rps-flow-cnt:1": "512"}
    machine = Machine(policy(STRICT), nic(settings=found))
    machine.uses(1, 1)
    assert machine.later(3) == ["rps-flow-cnt:1 = 0"]
    assert handed_on(machine) == [{101: 1}, {}]


def test_a_driver_that_may_drop_a_filter_proves_no_order() -> None:
    """Row 24."""
    machine = Machine(policy(STRICT), nic(asynchronous=True))
    assert machine.uses(1, 1) == []
    assert "no move by filters is proven to keep the order" in machine.why(1)
    machine = Machine(policy({"order": "bounded"}), nic(asynchronous=True))
    assert machine.uses(1, 1) == ["insert 1 to 1"]


def test_a_kind_of_flow_that_the_filters_do_not_take() -> None:
    """Row 24."""
    machine = Machine(policy(), nic(flow_types=frozenset({(4, 17)})))
    assert machine.uses(1, 1) == []
    assert machine.why(1) == "this NIC's filters take no IPv4 TCP flow"


def test_a_nic_without_filters_steers_by_its_indirection_table() -> None:
    """Row 25."""
    machine = Machine(policy(), nic(filters=False))
    assert machine.uses(1, 1) == []
    assert len(machine.entries()) == 1
    assert (machine.state(1), machine.queue(1)) == (FlowState.RSS, 1)


def test_an_entry_goes_to_the_cpu_that_uses_clearly_more_of_it() -> None:
    """Row 25. All flows here hash to one entry."""
    machine = Machine(policy(), nic(filters=False))
    machine.uses(1, 1)
    machine.entries()
    machine.uses(2, 2, by=2)
    assert machine.entries() == []
    assert "shares entry 0 with a flow on CPU 1" in machine.why(2)
    machine.sockets[2].rate = 10_000_000
    machine.later(3)
    assert len(machine.entries()) == 1
    assert [machine.state(number) for number in (1, 2)] == [FlowState.SHARED, FlowState.RSS]


def test_an_entry_of_a_flow_that_keeps_its_order_stays() -> None:
    """Row 25."""
    kept = {**STRICT, "match": {"process": "kept"}}
    machine = Machine(policy(kept, {}), nic(filters=False))
    machine.uses(1, 1, by=thread(1, comm="kept"))
    machine.uses(2, 2, by=2)
    assert machine.entries() == []
    assert "another flow of the entry keeps its order" in machine.why(2)


def test_flows_of_a_table_that_another_program_wrote_are_left_alone() -> None:
    """Row 25."""
    machine = Machine(policy(), nic(filters=False))
    machine.uses(1, 1)
    machine.entries()
    machine.tell(told.EntriesLeftAlone("nic"))
    assert machine.state(1) is FlowState.MANUAL
    assert machine.uses(1, 2) + machine.entries() == []
