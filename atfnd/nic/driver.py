# SPDX-License-Identifier: GPL-2.0-or-later
"""From the name an operator gives to the driver that serves it."""

from __future__ import annotations

import errno
import socket

from atfnd.errors import OperatorError
from atfnd.kernel.interface import Interface
from atfnd.kernel.netlink.rtnl import link
from atfnd.kernel.system.netns import exists
from atfnd.nic import Nic
from atfnd.nic.ethtool.conflicts import stacked
from atfnd.nic.ethtool.nic import EthtoolNic
from atfnd.nic.lab.device import host_netns
from atfnd.nic.lab.nic import LabNic

__all__ = ["lab_is_there", "open_nic"]


def open_nic(name: str) -> Nic:
    """`lab:NAME` opens a lab NIC, another name the interface of our namespace. OperatorError when
    there is none, or when packets do not come in through it: loopback, tunnels, and what stands on
    others, be it a bond, a bridge, a VLAN, or a device that is the master of another."""
    driver, colon, rest = name.partition(":")
    if colon and driver == "lab" and rest:
        return LabNic(rest)
    try:
        interface = Interface(name)
    except OSError as error:
        if error.errno not in (errno.ENODEV, errno.EINVAL):
            raise
        known = [there for _, there in socket.if_nameindex()]
        raise OperatorError(
            f"no interface {name!r} here",
            f"there are: {', '.join(known)}; a lab NIC is named lab:NAME",
        ) from error
    try:
        _refuse_stacked(interface, name)
    finally:
        interface.close()
    return EthtoolNic(name)


def lab_is_there(name: str) -> bool:
    """`name` is that of a lab, and there is a namespace for its NIC."""
    driver, colon, rest = name.partition(":")
    return driver == "lab" and bool(colon and rest) and exists(host_netns(rest))


def _refuse_stacked(interface: Interface, name: str) -> None:
    if interface.loopback():
        raise OperatorError(f"{name} is the loopback interface: no packet comes in there")
    lower = interface.lower()
    kind = link(None, interface.ifindex).kind
    above = stacked(kind, interface.driver().name, lower)
    if above is not None:
        use = " ".join(f"--nic {port}" for port in lower)
        raise OperatorError(f"{name} is {above}", f"steer those: {use}" if lower else None)
