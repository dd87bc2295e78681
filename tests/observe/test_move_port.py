# SPDX-License-Identifier: GPL-2.0-or-later
"""What the moves know of a NIC: what the kernel says, and None where it does not."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.kernel import interface
from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink.netdev import (
    NAPI_DEFER_HARD_IRQS,
    NAPI_GRO_FLUSH_TIMEOUT,
    NAPI_ID,
    NETDEV_CMD_NAPI_SET,
)
from atfnd.kernel.netlink.requests import GenericFamily, attribute
from atfnd.model import Actuator, Device, NicFacts
from atfnd.move.port import Port, Ring, Stage
from atfnd.move.timer import Times, pipe_ns
from atfnd.nic.ethtool.nic import EthtoolNic
from atfnd.observe.nics.move_port import read_port
from atfnd.observe.nics.watch import NicWatch
from tests.labs import Lab
from tests.nic.interfaces import QUEUES, Namespace, a_namespace, xdp_pass


class Other:
    """An interface of four queues, and what stands on it."""

    def __init__(self, net: Namespace, watch: NicWatch, interface: Interface) -> None:
        self.net, self._watch, self.interface = net, watch, interface

    @property
    def facts(self) -> NicFacts:
        self._watch.refresh()
        return self._watch.facts

    @property
    def port(self) -> Port:
        return read_port(self.facts, self.interface, None)

    def write(self, path: str, text: str) -> None:
        self.interface.write(path, text)


@pytest.fixture
def other() -> Iterator[Other]:
    with (
        a_namespace() as net,
        closing(NicWatch(EthtoolNic("v0", net.path))) as watch,
        closing(Interface("v0", net.path)) as interface,
    ):
        yield Other(net, watch, interface)


def sysctls(root: Path, busy_poll: str, busy_read: str) -> Path:
    core = root / "sys/net/core"
    core.mkdir(parents=True)
    (core / "busy_poll").write_text(busy_poll)
    (core / "busy_read").write_text(busy_read)
    return root


def test_all_is_known_of_the_lab(lab: Lab, tmp_path: Path) -> None:
    with closing(NicWatch(lab.nic)) as watch:
        watch.inspect()
        port = read_port(watch.facts, lab.nic.interface, 7, sysctls(tmp_path, "0\n", "0\n"))
    ring = Ring(256, rx_usecs=0, gro_flush_timeout_ns=0, busy_poll=False, thread=True)
    rings = tuple(
        ring._replace(cpu=queue.cpu, timeout=f"gro-flush-timeout:{queue.index}")
        for queue in watch.facts.queues
    )
    assert len(rings) == 4
    assert port == Port(Actuator.IN_PLACE, False, frozenset(), rings, write_ns=7, holds_max=2)


def test_no_queue_without_a_confined_thread_can_be_held(other: Other) -> None:
    assert {ring.no_hold for ring in other.port.rings} == {"it has no NAPI thread"}
    assert not any(ring.thread for ring in other.port.rings)
    other.write("threaded", "1")
    assert len(other.port.rings) == QUEUES
    assert all(ring.thread for ring in other.port.rings)
    several = {"its NAPI thread may run on several CPUs"}
    assert {ring.no_hold for ring in other.port.rings} == several


def test_an_interrupt_is_deferred_by_both_settings_together(other: Other) -> None:
    for timeout_ns, polls in ((0, 0), (50_000, 0), (0, 100), (50_000, 100)):
        other.write("gro_flush_timeout", str(timeout_ns))
        other.write("napi_defer_hard_irqs", str(polls))
        found = {(ring.gro_flush_timeout_ns, ring.defers) for ring in other.port.rings}
        assert found == {(timeout_ns, bool(timeout_ns and polls))}


def test_a_queue_of_its_own_settings_is_read_by_them(other: Other) -> None:
    """A write by `napi-set` is of one NAPI, and the files of the interface do not show it."""
    [napi] = [queue.napi_id for queue in other.facts.queues if queue.index == 1]
    assert napi is not None
    request = attribute(NAPI_ID, struct.pack("=I", napi))
    request += attribute(NAPI_DEFER_HARD_IRQS, struct.pack("=I", 100))
    request += attribute(NAPI_GRO_FLUSH_TIMEOUT, struct.pack("=I", 50_000))
    with closing(GenericFamily("netdev", other.net.path)) as netdev:
        netdev.request(NETDEV_CMD_NAPI_SET, request)
    assert other.interface.read("napi_defer_hard_irqs") == "0"
    rings = other.port.rings
    assert [ring.defers for ring in rings] == [False, True, False, False]
    assert [ring.gro_flush_timeout_ns for ring in rings] == [0, 50_000, 0, 0]


@pytest.mark.parametrize(
    ("values", "polls"),
    [(("0", "0"), False), (("50", "0"), True), (("0", "50"), True), (None, None)],
)
def test_sockets_may_be_busy_polled(
    other: Other, tmp_path: Path, values: tuple[str, str] | None, polls: bool | None
) -> None:
    """Another network namespace does not say whether."""
    root = sysctls(tmp_path, *values) if values else tmp_path
    port = read_port(other.facts, other.interface, None, root)
    assert {ring.busy_poll for ring in port.rings} == {polls}


def test_what_the_kernel_refuses_to_say_now_is_not_known(
    other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(netns: str | None) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(interface, "NetdevFamily", refuse)
    port = other.port
    assert port.stages is None
    assert {(ring.gro_flush_timeout_ns, ring.busy_poll) for ring in port.rings} == {(None, None)}
    assert {ring.defers for ring in port.rings} == {None}
    monkeypatch.undo()
    assert other.port.stages == frozenset()


def test_packet_steering_is_a_stage(other: Other) -> None:
    assert other.port.stages == frozenset()
    other.write("queues/rx-2/rps_cpus", "1")
    assert other.port.stages == frozenset({Stage.RPS})
    other.write("queues/rx-2/rps_cpus", "0")
    assert other.port.stages == frozenset()


def test_what_stands_on_it_is_a_stage_and_an_xdp_program_may_do_anything(
    other: Other, tmp_path: Path
) -> None:
    for commands, stages in (
        (["link add link v0 name u0 type macvlan"], frozenset[Stage]()),
        (["link add u0 type vxlan id 7 dstport 4789 dev v0"], frozenset({Stage.GRO_CELLS})),
        (["link add u0 type bridge", "link set v0 master u0"], frozenset({Stage.NETIF_RX})),
    ):
        for command in commands:
            other.net.ip(command)
        assert other.port.stages == stages
        other.net.ip("link delete u0")
    other.net.ip(f"link set dev v0 xdp obj {xdp_pass(tmp_path)} sec xdp")
    assert other.port.stages is None


def test_adaptive_moderation_is_taken_for_its_most(other: Other) -> None:
    def usecs(device: Device) -> set[int | None]:
        port = read_port(replace(other.facts, device=device), other.interface, None)
        return {ring.rx_usecs for ring in port.rings}

    assert usecs(Device()) == {None}
    assert usecs(Device(rx_usecs=8, adaptive_rx=False)) == {8}
    assert usecs(Device(rx_usecs=8, adaptive_rx=True)) == {256}


def test_an_interrupt_is_on_its_way_for_some_time(other: Other) -> None:
    first, *rest = other.facts.queues
    view = replace(other.facts, queues=(replace(first, irq=40), *rest))
    port = read_port(view, other.interface, None)
    assert port.rings[0].irq_ns > 0
    assert {ring.irq_ns for ring in port.rings[1:]} == {0}
    assert pipe_ns(port.rings[0], Times()) > pipe_ns(port.rings[1], Times())
