# SPDX-License-Identifier: GPL-2.0-or-later
"""What the moves have to know of a NIC (move/port.py), from the kernel: None where it is silent.

Reads the queues, the device and the capabilities as `NicWatch` last saw them, and now:

- gro_flush_timeout and napi_defer_hard_irqs of each NAPI (netdev napi-get, since 6.13), before that
  of the interface (/sys/class/net/X/gro_flush_timeout);
- net.core.busy_poll and busy_read, which the kernel shows in its first network namespace only. A
  socket's own SO_BUSY_POLL and an epoll's own setting cannot be read: what such polling leaves
  in GRO is seen at the end of a poll (transit.bpf.c), and of a quiesced queue it is `leaky`;
- RPS of its queues (rps_cpus), and which of them have RFS (get_rps_cpu(), net/core/dev.c: a queue's
  flow table without the machine's table steers nothing);
- what stands on the interface (/sys/class/net/X/upper_*) and of which kind it is, and an XDP
  program on it, which may redirect to a cpumap or not: delivery is not known then.

Decryption is no stage of a flow that a filter of the NIC can match: its ports are not encrypted.
The observer of polls gives the speed at which a queue is polled. Without it T_timer takes its own
figure (move/timer.py); `strict` does not need it.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Set
from pathlib import Path
from typing import NamedTuple

from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES, read_steering
from atfnd.kernel.netlink.rtnl import link_by
from atfnd.model import Device, NicFacts, Queue
from atfnd.model.nic import thread_switch
from atfnd.model.reception import TIMEOUT
from atfnd.move.port import NO_THREAD, Port, Ring, Stage
from atfnd.observe.sockets.transit import HOLDS

__all__ = ["read_port"]

IRQ_NS = 100_000  # as T_pipe, a bound that is assumed: docs/internals/ordering.md, H1
ADAPTIVE_USECS = 256  # the most in net_dim's receive profiles (lib/dim/net_dim.c)
INLINE = {"bond", "ipvlan", "ipvtap", "macvlan", "macvtap", "team", "vlan", "vrf"}
BY_KIND = {
    **dict.fromkeys(
        # gro_cells_receive() in drivers/net/, net/ipv4/ip_tunnel.c, net/ipv6/ip6_tunnel.c
        ("amt", "bareudp", "erspan", "geneve", "gre", "gretap", "ip6erspan", "ip6gre",
         "ip6gretap", "ip6tnl", "ipip", "macsec", "vti", "vti6", "vxlan", "xfrm"),
        Stage.GRO_CELLS,
    ),
    # their ports may be veth, whose other end receives by netif_rx() or a NAPI of its own
    **dict.fromkeys(("bridge", "openvswitch"), Stage.NETIF_RX),
}  # fmt: skip
UPPER = "upper_"


def read_port(
    nic: NicFacts,
    interface: Interface,
    write_ns: int | None,
    proc: Path = Path("/proc"),
    service_pps: Mapping[int, float] | None = None,
    borrow: bool = True,
    manual: Set[str] = frozenset(),
) -> Port:
    """`interface` is the NIC's own: to open its sysfs anew waits for RCU when it is closed (umount,
    namespace_unlock()), for seconds on a busy machine. `write_ns`: what a rule write takes;
    `service_pps`: how fast queues are polled, by number. `borrow`: NAPI threads may be borrowed,
    except by settings that are `manual`. What the kernel refuses to tell now is None, which puts
    off what depends on it. OSError(ENODEV): the interface is gone."""
    interface.name()  # ENODEV: no file of it is there either, and none would say so
    late, busy_poll, stages, settings = dict[int, _Late](), None, None, dict[str, str]()
    try:
        late, busy_poll = _late(nic, interface), _busy_poll(proc)
        settings = read_steering(interface, ("rps-cpus", "rps-flow-cnt"))
        stages = _stages(nic, interface, settings)
    except OSError as refusal:
        if refusal.errno in (errno.ENODEV, errno.ENOENT):
            raise
    return Port(
        actuator=nic.caps.actuator,
        asynchronous=nic.caps.asynchronous,
        stages=stages,
        rings=tuple(
            Ring(
                size=nic.ring_size,
                rx_usecs=_rx_usecs(nic.device),
                gro_flush_timeout_ns=late.get(queue.index, _UNKNOWN).gro_flush_timeout_ns,
                busy_poll=busy_poll,
                service_pps=(service_pps or {}).get(queue.index),
                thread=queue.threaded,
                irq_ns=0 if queue.irq is None else IRQ_NS,
                no_hold=_no_hold(queue, why_no_loan),
                cpu=queue.cpu,
                loan=loan,
                hands_on=_has_rfs(queue, settings),
                timeout=_timeout(queue.index, nic.settings, manual),
                defers=late.get(queue.index, _UNKNOWN).defers,
            )
            for queue in nic.queues
            for loan, why_no_loan in [thread_switch(queue, nic.settings, manual, allowed=borrow)]
        ),
        write_ns=write_ns,
        holds_max=HOLDS,
    )


class _Late(NamedTuple):
    """What a NAPI leaves for later at the end of a poll."""

    gro_flush_timeout_ns: int | None
    defer_hard_irqs: int | None

    @property
    def defers(self) -> bool | None:
        """Either of the two alone does not defer (napi_complete_done(), net/core/dev.c)."""
        if 0 in self:
            return False
        return None if None in self else True


_UNKNOWN = _Late(None, None)


def _late(nic: NicFacts, interface: Interface) -> dict[int, _Late]:
    """By queue."""
    napis = (interface.netdev and interface.netdev.napis(nic.ifindex)) or []
    of_napi = {napi.id: _Late(napi.gro_flush_timeout_ns, napi.defer_hard_irqs) for napi in napis}
    timeout_ns = interface.read("gro_flush_timeout")
    polls = interface.read("napi_defer_hard_irqs") or "0"  # a kernel before 5.8 does not defer
    of_all = _Late(None if timeout_ns is None else int(timeout_ns), int(polls))
    return {
        queue.index: own if None not in own else of_all
        for queue in nic.queues
        for own in [of_napi.get(queue.napi_id or 0, _UNKNOWN)]
    }


def _timeout(queue: int, settings: Mapping[str, str], manual: Set[str]) -> str | None:
    """The setting that may be 0 while flows move."""
    name = next((each for each in (f"{TIMEOUT}:{queue}", TIMEOUT) if each in settings), None)
    return None if name in manual else name


def _busy_poll(proc: Path) -> bool | None:
    """Any socket may be busy-polled (net/core/sysctl_net_core.c). None: not known here."""
    try:
        values = [(proc / "sys/net/core" / name).read_text() for name in ("busy_poll", "busy_read")]
    except FileNotFoundError:
        return None
    return any(int(value) for value in values)


def _stages(
    nic: NicFacts, interface: Interface, settings: Mapping[str, str]
) -> frozenset[Stage] | None:
    """None: what stands there, or an XDP program, may do anything."""
    if link_by(interface.rtnetlink, nic.ifindex).xdp is not None:
        return None
    spreads = any(value for name, value in settings.items() if name.startswith("rps-cpus:"))
    stages = {Stage.RPS} if spreads else set()
    for name in (each.removeprefix(UPPER) for each in interface.list() if each.startswith(UPPER)):
        ifindex = interface.index_of(name)
        if ifindex is None:
            return None
        kind = link_by(interface.rtnetlink, ifindex).kind
        if kind in BY_KIND:
            stages.add(BY_KIND[kind])
        elif kind not in INLINE:
            return None
    return frozenset(stages)


def _has_rfs(queue: Queue, settings: Mapping[str, str]) -> bool:
    """As far as is known: only the first network namespace shows the machine's table."""
    flows = int(settings.get(f"rps-flow-cnt:{queue.index}", "0"))
    return bool(flows) and settings.get(FLOW_ENTRIES) != "0"


def _rx_usecs(device: Device) -> int | None:
    """The most that an interrupt may wait. Adaptive, it is not what was set."""
    if device.adaptive_rx:
        return max(device.rx_usecs or 0, ADAPTIVE_USECS)
    return device.rx_usecs


def _no_hold(queue: Queue, why_no_loan: str) -> str | None:
    """What `program.quiesce` would refuse."""
    if queue.threaded is None:
        return "whether it has a NAPI thread is not known"
    if not queue.threaded or queue.pid is None:
        return why_no_loan or NO_THREAD
    if queue.cpu is None:
        return "its NAPI thread may run on several CPUs"
    return None
