# SPDX-License-Identifier: GPL-2.0-or-later
"""Bring a lab up: namespaces, links, offloads, NAPI threads, then the classifier as its NIC.

Writes only inside the lab's own namespaces. A lab that fails half-way is taken down again; one that
was killed half-way is found broken and rebuilt by the next `up`.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing

from pyroute2 import IPRoute, netns

from atfnd.bpf import _bpf
from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.interrupts.napi import make_realtime, thread_cpus
from atfnd.kernel.interrupts.napi_threads import polled
from atfnd.kernel.netlink.clsact import EGRESS
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.kernel.system.netns import in_netns, write_sysctl
from atfnd.lab.down import building, remove
from atfnd.lab.status import LabStatus, lab_status
from atfnd.lab.wiring import LINKS, PEER_LINK, PEER_WIRE_LINK, SYSCTLS, check_request, namespaces
from atfnd.model import Rss
from atfnd.model.toeplitz import MICROSOFT_KEY
from atfnd.nic.lab.device import (
    FIRST_RING,
    HOST_LINK,
    MAX_QUEUES,
    MAX_SLOTS,
    WIRE_LINK,
    LabDevice,
)
from atfnd.nic.lab.interrupts import set_cpus
from atfnd.nic.lab.nic import INTERRUPT_PRIORITY, write_rss

__all__ = ["DEFAULT_SLOTS", "up"]

MIN_QUEUES, DEFAULT_SLOTS = 2, 4096
# Below the queues' threads, or it fills a ring while that ring's thread waits for the same CPU.
WIRE_PRIORITY = INTERRUPT_PRIORITY // 2
RSS_ENTRIES = 128


def up(
    name: str, queues: int | None = None, slots: int | None = None, interrupts: bool = False
) -> bool:
    """Bring the lab up; False when it was up already, and nothing was changed.

    `queues` is one per CPU unless given, `slots` (filters the NIC can hold) 4096. `interrupts`: a
    queue's packets come by an interrupt to its CPU (`atfnd.nic.lab.interrupts`), else by its NAPI
    thread. OperatorError for impossible numbers, when not root or with one CPU for interrupts, and
    when a lab of that name is up with other numbers or in the other mode.
    """
    check_request(name)
    if queues is not None and not MIN_QUEUES <= queues <= MAX_QUEUES:
        raise OperatorError(f"{queues} queues", f"from {MIN_QUEUES} to {MAX_QUEUES}")
    if slots is not None and not 1 <= slots <= MAX_SLOTS:
        raise OperatorError(f"{slots} filter slots", f"from 1 to {MAX_SLOTS}")
    if interrupts and (os.cpu_count() or 1) < 2:
        raise OperatorError(
            "interrupts need two CPUs: a core sends none to itself", "leave out --interrupts"
        )
    with building():
        found = lab_status(name)
        if found.state == "up":
            _check_same(found, queues, slots, interrupts)
            return False
        remove(name)
        with ExitStack() as undo:
            undo.callback(remove, name)
            count = queues or _default_queues()
            _build(namespaces(name), count, slots or DEFAULT_SLOTS, interrupts)
            undo.pop_all()
        return True


def _default_queues() -> int:
    return min(max(os.cpu_count() or 1, MIN_QUEUES), MAX_QUEUES)


def _check_same(found: LabStatus, queues: int | None, slots: int | None, interrupts: bool) -> None:
    same = queues in (None, len(found.queues)) and slots in (None, found.filter_slots)
    if same and interrupts == found.interrupts:
        return
    raise OperatorError(
        f"lab {found.name} is up with {len(found.queues)} queues and {found.filter_slots} filters, "
        f"delivered by {'interrupts' if found.interrupts else 'NAPI threads'}",
        "take it down first (atfnd lab down), or ask for the same",
    )


def _build(paths: dict[str, str], queues: int, slots: int, interrupts: bool) -> None:
    for role, path in paths.items():
        netns.create(path)
        for sysctl, value in SYSCTLS[role]:
            write_sysctl(path, sysctl, value)
    in_netns(paths["wire"], lambda: _make_pairs(paths, FIRST_RING + queues))
    for role, path in paths.items():
        in_netns(path, lambda role=role: _configure_links(role))  # type: ignore[misc]
    # A stack that segments late and gathers in NAPI passes every packet through a ring, in order.
    _set_offloads(paths["peer"], PEER_LINK, tso=False)
    _set_offloads(paths["wire"], PEER_WIRE_LINK, gro=True)
    _set_offloads(paths["wire"], WIRE_LINK, tso=False)
    _set_offloads(paths["host"], HOST_LINK, gro=True)
    _start_threads(paths["wire"], PEER_WIRE_LINK, WIRE_PRIORITY, pinned=False)
    _start_threads(paths["host"], HOST_LINK, INTERRUPT_PRIORITY, pinned=not interrupts)
    if interrupts:
        _start_interrupts(paths["host"])
    _attach_device(paths["wire"], queues, slots, interrupts)


def _make_pairs(paths: dict[str, str], queues: int) -> None:
    """Both veth pairs, from inside the wire, each end born where it belongs."""
    peer, host = ({"net_ns_fd": paths[role]} for role in ("peer", "host"))
    many = {"num_rx_queues": queues, "num_tx_queues": queues}
    with IPRoute() as route:
        route.link("add", ifname=PEER_WIRE_LINK, kind="veth", peer={"ifname": PEER_LINK, **peer})
        route.link(
            "add", ifname=WIRE_LINK, kind="veth", **many, peer={"ifname": HOST_LINK, **many, **host}
        )


def _configure_links(role: str) -> None:
    """Addresses, Ethernet address, no neighbour discovery, up: in the caller's namespace."""
    with IPRoute() as route:
        route.link("set", index=route.link_lookup(ifname="lo")[0], state="up")
        for link in LINKS:
            if link.netns != role:
                continue
            index = route.link_lookup(ifname=link.name)[0]
            route.link("set", index=index, address=link.mac, arp=False)
            route.link("set", index=index, state="up")
            for address, prefix in link.addresses:
                route.addr("add", index=index, address=address, prefixlen=prefix)


def _set_offloads(path: str, name: str, tso: bool | None = None, gro: bool | None = None) -> None:
    with closing(Interface(name, path)) as link:
        if tso is not None:
            link.set_tso(tso)
        if gro is not None:
            link.set_gro(gro)


def _start_threads(path: str, name: str, priority: int, pinned: bool) -> None:
    """A thread per ring; pinned, that of queue i runs on the i-th CPU, round and round."""
    interface, family = Interface(name, path), NetdevFamily(path)
    try:
        interface.write("threaded", "1")
        napis_known = family.napis(interface.ifindex)
        for ring, napi in enumerate(polled(interface, napis_known) if napis_known else [None]):
            if napi is None or napi.pid is None:
                raise OperatorError(
                    f"{name} has no NAPI threads", "the kernel must be 6.8 or later"
                )
            cpus = sorted(thread_cpus(napi.pid))  # every online one a kernel thread may use
            cpu = cpus[(ring - FIRST_RING) % len(cpus)] if pinned else None
            make_realtime(napi.pid, cpu, priority)
    finally:
        family.close()
        interface.close()


def _start_interrupts(path: str) -> None:
    """Those of queue i go to the i-th CPU, round and round."""
    interface, family = Interface(HOST_LINK, path), NetdevFamily(path)
    try:
        unused, *threads = (
            napi.pid for napi in polled(interface, family.napis(interface.ifindex)) if napi.pid
        )
        online = thread_cpus(unused)
        for queue, thread in enumerate(threads):
            cpus = frozenset({sorted(online)[queue % len(online)]})
            set_cpus(interface, queue, cpus, thread, online, INTERRUPT_PRIORITY)
    finally:
        family.close()
        interface.close()


def _attach_device(path: str, queues: int, slots: int, interrupts: bool) -> None:
    """Load the classifier, set it up, and only then let it see packets."""
    program, identity = _bpf.classifier_load(slots)
    try:
        device = LabDevice(identity, path)
        try:
            device.size(queues, slots, FIRST_RING, interrupts=interrupts)
            write_rss(device, Rss(MICROSOFT_KEY, tuple(i % queues for i in range(RSS_ENTRIES))))
        finally:
            device.close()
        in_netns(path, lambda: _attach(program))
    finally:
        os.close(program)


def _attach(program: int) -> None:
    with IPRoute() as route:
        index = route.link_lookup(ifname=WIRE_LINK)[0]
        route.tc("add", "clsact", index)
        route.tc(
            "add-filter",
            "bpf",
            index,
            fd=program,
            name="atfnd",
            parent=EGRESS,
            classid=1,
            direct_action=True,
        )
