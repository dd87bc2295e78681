# SPDX-License-Identifier: GPL-2.0-or-later
"""What is set up on a real NIC that works against steering. Reads only.

What atfnd itself turns off while the NIC is armed, and later puts back (accelerated RFS, a driver's
own flow steering, RPS) blocks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from atfnd.kernel.interrupts.irq import movable
from atfnd.kernel.interrupts.packet_steering import FLOW_ENTRIES
from atfnd.kernel.netlink.netdev import ReceiveQueue
from atfnd.kernel.netlink.rtnl import Link
from atfnd.kernel.system.cpulist import format_cpulist
from atfnd.model import Conflict, Device, Queue

__all__ = ["found_conflicts", "stacked"]

TUNNELS = {"erspan", "fou", "geneve", "gre", "gretap", "gtp", "ip6erspan", "ip6gre", "ip6gretap"}
TUNNELS |= {"ip6tnl", "ipip", "l2tp_eth", "sit", "vti", "vti6", "vxlan", "wireguard", "xfrm"}
STACKED = {"bond", "bridge", "hsr", "ipvlan", "ipvtap", "macsec", "macvlan", "macvtap", "team"}
STACKED |= {"vlan", "vrf"}


def stacked(kind: str | None, driver: str | None, lower: Iterable[str]) -> str | None:
    """Why packets of this interface come in through others, whose filters and queues must be
    steered instead; None when they come in here. A master may have a device of its own: hv_netvsc
    over a virtual function, net_failover, a port of a DSA switch."""
    ports = ", ".join(lower)
    if not (ports or kind in TUNNELS | STACKED):
        return None
    if kind in TUNNELS:
        return f"a {kind} tunnel: its packets come in through " + (ports or "another interface")
    return f"a {kind or driver or 'virtual'} interface on top of " + (ports or "none yet")


def found_conflicts(
    name: str,
    link: Link,
    above: str | None,
    users: Iterable[ReceiveQueue],
    queues: tuple[Queue, ...],
    device: Device,
    settings: Mapping[str, str],
    atr_flag: str | None,
    arfs: bool,
) -> tuple[Conflict, ...]:
    """All of them, those that block first. `above`: the result of `stacked`; `arfs`: the driver
    may turn RFS into filters."""
    found = [
        *_not_ours(name, link, above, users),
        *_steered_by_others(name, device, settings, atr_flag, arfs),
        *_queues(name, queues, device),
    ]
    return tuple(sorted(found, key=lambda conflict: not conflict.blocks))


def _not_ours(
    name: str, link: Link, above: str | None, users: Iterable[ReceiveQueue]
) -> Iterator[Conflict]:
    """Packets that do not reach sockets through this interface's queues."""
    if above is not None:
        yield Conflict(f"{name} is {above}", "steer those", blocks=True)
    taken: dict[str, list[int]] = {}
    for queue in users:
        if queue.user is not None:
            taken.setdefault(queue.user, []).append(queue.queue)
    for user, indexes in taken.items():
        what = f"{user} takes the packets of queue {format_cpulist(indexes)}"
        yield Conflict(what, "stop that application, or leave this NIC to it", blocks=True)
    if link.xdp is not None:
        what = f"an XDP program ({link.xdp}) sees every packet before its socket, and may take it"
        yield Conflict(what, f"look with: bpftool net show dev {name}", blocks=False)


def _steered_by_others(
    name: str, device: Device, settings: Mapping[str, str], atr_flag: str | None, arfs: bool
) -> Iterator[Conflict]:
    """What else decides on which CPU a packet is handled."""
    flows = [index for index, value in _of(settings, "rps-flow-cnt") if int(value)]
    if flows and int(settings.get(FLOW_ENTRIES, "0")) and device.ntuple and arfs:
        what = f"accelerated RFS steers flows of queue {format_cpulist(flows)} with filters, too"
        off = f"echo 0 | tee /sys/class/net/{name}/queues/rx-*/rps_flow_cnt"
        yield Conflict(what, f"atfnd turns it off while {name} is armed; or: {off}", blocks=False)
    if atr_flag is not None and settings.get(f"priv:{atr_flag}") == "on":
        what = f"{device.driver} steers TCP flows by what they send ({atr_flag})"
        off = f"ethtool --set-priv-flags {name} {atr_flag} off"
        yield Conflict(what, f"atfnd turns it off while {name} is armed; or: {off}", blocks=False)
    spread = [index for index, value in _of(settings, "rps-cpus") if value]
    if spread:
        what = f"RPS hands packets of queue {format_cpulist(spread)} to other CPUs"
        off = f"echo 0 | tee /sys/class/net/{name}/queues/rx-*/rps_cpus"
        yield Conflict(what, off, blocks=False)


def _queues(name: str, queues: tuple[Queue, ...], device: Device) -> Iterator[Conflict]:
    if len(queues) == 1:
        more = device.channels_max is not None and device.channels_max > 1
        advice = device.set_channels(name, device.channels_max or 0) if more else "it has no more"
        yield Conflict("packets have one receive queue to come in by", advice, blocks=False)
    moved = [queue for queue in queues if queue.borrowed or not queue.threaded]
    irqs = [queue.irq for queue in moved if queue.irq is not None]
    fixed = [irq for irq in irqs if not movable(irq)]
    if fixed:
        what = f"the kernel manages the affinity of interrupt {format_cpulist(fixed)}"
        advice = "the queues stay on their CPUs; flows can be steered to them nevertheless"
        yield Conflict(what, advice, blocks=False)


def _of(settings: Mapping[str, str], kind: str) -> Iterator[tuple[int, str]]:
    for name, value in settings.items():
        if name.startswith(f"{kind}:"):
            yield int(name.partition(":")[2]), value
