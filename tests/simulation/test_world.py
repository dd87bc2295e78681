# SPDX-License-Identifier: GPL-2.0-or-later
"""The simulated world is as its parts say: packets, drivers, the observer, the disk, chance."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from atfnd.model import Actuator, Distance, FlowKey, Match, Protocol, SocketGone, SocketSeen
from atfnd.nic import Nic
from atfnd.nic.driver_table import driver_of
from atfnd.nic.drivers import Overwrite
from atfnd.observe import Observer, Price, Qualify
from tests.simulation.machine import Machine, WorldObserver
from tests.simulation.nic import WorldNic
from tests.simulation.schedule import DRIVERS
from tests.simulation.wire import Flow
from tests.simulation.world import World

MS = 1_000_000


def key(number: int) -> FlowKey:
    return FlowKey(Protocol.TCP, b"\x0a\0\0\1", 443, b"\x0a\1" + number.to_bytes(2, "big"), 1000)


@pytest.fixture
def world() -> Iterator[World]:
    made = World(1)
    with made.clock():
        yield made


def a_nic(world: World, driver: str = "hns3", slots: int = 64) -> WorldNic:
    return WorldNic(world, "eth0", 1, driver, 4, slots=slots)


def a_flow(world: World, nic: WorldNic, number: int = 0, interval_ns: int = 10_000) -> Flow:
    flow = Flow(world, key(number), interval_ns, 1000 + number)
    nic.add(flow)
    world.pass_ns(10 * MS)
    return flow


def elsewhere(nic: WorldNic, flow: Flow) -> int:
    return (nic.queue_of(flow) + 1) % len(nic.rings)


@pytest.mark.parametrize("seed", range(20))
def test_packets_of_one_ring_are_delivered_in_order(seed: int) -> None:
    world = World(seed)
    with world.clock():
        nic = a_nic(world)
        flow = a_flow(world, nic)
        flow.waits = True  # they are made, one by one
        flow.comes_to(nic.rings[elsewhere(nic, flow)], "the test")
        world.pass_ns(50 * MS)
        late = flow.late
        flow.waits = True
        flow._arrive_next()
        world.pass_ns(5 * MS)
        assert flow.late == late
        assert flow.last > 0


def test_a_filter_that_changes_the_ring_of_a_flow_that_is_not_drained_reorders(
    world: World,
) -> None:
    nic = a_nic(world)
    flow = a_flow(world, nic)
    nic.rings[nic.queue_of(flow)].stall(world.now_ns + 5 * MS)
    nic.insert(flow.match, elsewhere(nic, flow))
    world.pass_ns(20 * MS)
    assert flow.late > 0
    assert [change.late for change in flow.changes] == [flow.late]
    assert not flow.waits


def test_a_quiesced_ring_delivers_nothing_until_it_is_released(world: World) -> None:
    nic = a_nic(world)
    flow = a_flow(world, nic)
    to = nic.rings[elsewhere(nic, flow)]
    to.quiesce(world.now_ns + 50 * MS)
    nic.insert(flow.match, to.index)
    world.pass_ns(5 * MS)
    assert all(entry[1] is flow for entry in to.packets)
    assert to.packets
    assert flow.waits
    to.release()
    world.pass_ns(5 * MS)
    assert not flow.waits
    assert flow.late == 0


def test_it_is_a_nic(world: World) -> None:
    nic: Nic = a_nic(world)
    assert nic.caps().actuator is Actuator.IN_PLACE
    assert nic.probe().probed
    assert nic.filters() == []
    assert [queue.cpu for queue in nic.queues()] == [0, 1, 2, 3]


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_filter_is_inserted_moved_and_deleted_as_its_driver_does(
    world: World, driver: str
) -> None:
    nic, facts = a_nic(world, driver), driver_of(driver)
    flow = a_flow(world, nic)
    first, second = elsewhere(nic, flow), (elsewhere(nic, flow) + 1) % 4
    location = nic.insert(flow.match, first)
    assert (nic.queue_of(flow) == first) is not facts.asynchronous
    world.pass_ns(10 * MS)
    assert nic.queue_of(flow) == first
    rings = len(flow.changes)
    moved = nic.insert(flow.match, second, location)
    world.pass_ns(10 * MS)
    assert nic.queue_of(flow) == second
    by_gap = len(flow.changes) - rings > 1
    atomic = nic.table.overwrite in (Overwrite.IN_PLACE, Overwrite.BY_MATCH)
    assert by_gap is not (atomic or nic.rss_queue_of(flow) in (first, second))
    assert [(rule.match, rule.queue) for rule in nic.filters()] == [(flow.match, second)]
    nic.delete(moved)
    assert nic.filters() == []
    assert nic.queue_of(flow) == nic.rss_queue_of(flow)
    with pytest.raises(OSError, match=r".") as refusal:
        nic.delete(moved)
    assert refusal.value.errno == errno.ENOENT


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_full_table_is_said_to_be_full(world: World, driver: str) -> None:
    nic = a_nic(world, driver, slots=4)
    for number in range(4):
        nic.insert(Match.of(key(number)), 0)
    with pytest.raises(OSError, match=r".") as refusal:
        nic.insert(Match.of(key(5)), 0)
    assert refusal.value.errno == errno.ENOSPC
    assert len(nic.filters()) == 4


def test_an_accepted_filter_may_be_dropped_later(world: World) -> None:
    nic = a_nic(world, "iavf")
    nic.table.drops = 1
    nic.insert(Match.of(key(1)), 0)
    assert len(nic.filters()) == 1
    world.pass_ns(10 * MS)
    assert nic.filters() == []


def test_who_wrote_a_setting_is_known(world: World) -> None:
    nic = a_nic(world)
    nic.write_setting("queue-cpu:1", "3")
    assert (nic.setting("queue-cpu:1"), nic.untouched["queue-cpu:1"]) == ("3", "1")
    nic.admin_sets("queue-cpu:1", "2")
    assert (nic.setting("queue-cpu:1"), nic.untouched["queue-cpu:1"]) == ("2", "2")
    with pytest.raises(KeyError):
        nic.write_setting("queue-cpu:9", "1")


def test_a_link_that_is_down_has_no_interrupts_and_comes_up_with_new_ones(world: World) -> None:
    nic = a_nic(world)
    before = [queue.napi_id for queue in nic.queues()]
    nic.flap()
    assert [queue.napi_id for queue in nic.queues()] == [None] * 4
    world.pass_ns(60 * MS)
    after = [queue.napi_id for queue in nic.queues()]
    assert None not in after
    assert not set(after) & set(before)


def test_a_nic_that_is_gone_answers_so(world: World) -> None:
    nic = a_nic(world)
    nic.unplug()
    for call in (nic.filters, nic.queues, nic.caps, nic.up, nic.settings):
        with pytest.raises(OSError, match=r".") as refusal:
            call()
        assert refusal.value.errno == errno.ENODEV


def test_a_socket_is_reported_after_its_dwell_and_again_with_backoff(world: World) -> None:
    nic, machine = a_nic(world), Machine(world, 4)
    observer = WorldObserver(machine, Qualify(100 * MS, 0, 0))
    checked: Observer = observer
    checked.watch([None], {queue.napi_id or 0: nic.name for queue in nic.queues()})
    flow = Flow(world, key(0), MS, 1000)
    nic.add(flow)
    task = machine.task("app", elsewhere(nic, flow))
    socket = machine.open(flow, nic, task)
    world.pass_ns(99 * MS)
    assert checked.drain() == []
    world.pass_ns(3 * MS)
    [seen] = checked.drain()
    assert isinstance(seen, SocketSeen)
    assert (seen.app_cpu, seen.rx_cpu) == (task.cpu.index, socket.rx_cpu())
    world.pass_ns(10_000 * MS)
    assert len(checked.drain()) == 3  # one second after it, two, four
    nic.insert(flow.match, task.cpu.index)
    world.pass_ns(100_000 * MS)
    assert checked.drain() == []
    machine.move(task, machine.cpus[(task.cpu.index + 1) % 4])
    world.pass_ns(200 * MS)
    assert len(checked.drain()) == 1
    machine.close(socket)
    assert checked.drain() == [SocketGone(world.now_ns, 1000)]


def test_what_rss_delivers_right_is_not_reported(world: World) -> None:
    nic, machine = a_nic(world), Machine(world, 4)
    observer = WorldObserver(machine, Qualify(0, 0, 0))
    observer.watch([None], {1: nic.name})
    flow = Flow(world, key(0), MS, 1000)
    machine.open(flow, nic, machine.task("app", nic.rss_queue_of(flow)))
    world.pass_ns(1000 * MS)
    assert observer.drain() == []


def test_what_a_busy_flow_pays_is_seen_by_the_quiet_ones_of_its_thread(world: World) -> None:
    nic, machine = a_nic(world), Machine(world, 4)
    price = Price(1_500_000, (750, 1500, 2000), 9, 150 * MS, doubt=9)
    observer = WorldObserver(machine, Qualify(0, 0, 0, price=price))
    observer.watch([None], {1: nic.name})
    quiet, busy = Flow(world, key(0), 20 * MS, 1000), Flow(world, key(1), 10_000, 1001)
    served = {nic.rss_queue_of(quiet), nic.rss_queue_of(busy)}
    task = machine.task("app", min({*range(4)} - served))
    machine.open(quiet, nic, task)
    world.pass_ns(100 * MS)
    machine.open(busy, nic, task)
    world.pass_ns(200 * MS)
    seen = [each for each in observer.drain() if isinstance(each, SocketSeen)]
    homes = [[each.home for each in seen if each.key == flow.key] for flow in (quiet, busy)]
    assert homes == [[Distance.MACHINE, Distance.CPU]] * 2


def test_a_record_that_is_lost_is_counted_and_tried_again(world: World) -> None:
    nic, machine = a_nic(world), Machine(world, 4)
    observer = WorldObserver(machine, Qualify(0, 0, 0))
    observer.watch([None], {1: nic.name})
    observer.losing = 2
    flow = Flow(world, key(0), MS, 1000)
    machine.open(flow, nic, machine.task("app", (nic.rss_queue_of(flow) + 1) % 4))
    world.pass_ns(10 * MS)
    assert observer.lost() == 2
    assert len(observer.drain()) == 1
