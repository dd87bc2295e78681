# SPDX-License-Identifier: GPL-2.0-or-later
"""From the name an operator gives to the driver that serves it."""

from __future__ import annotations

import socket

from atfnd.errors import OperatorError
from atfnd.nic import Nic
from atfnd.nic.lab import LabNic

__all__ = ["open_nic"]


def open_nic(name: str) -> Nic:
    """`lab:NAME` opens a lab NIC. OperatorError when there is no such NIC, or no driver for it."""
    driver, colon, rest = name.partition(":")
    if colon and driver == "lab" and rest:
        return LabNic.open(rest)
    known = [interface for _, interface in socket.if_nameindex()]
    if name not in known:
        raise OperatorError(
            f"no interface {name!r} here",
            f"there are: {', '.join(known)}; a lab NIC is named lab:NAME",
        )
    raise OperatorError(
        f"{name}: atfnd cannot steer this interface yet, only lab NICs",
        "bring one up with `atfnd lab up` and name it lab:lab",
    )
