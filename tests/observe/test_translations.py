# SPDX-License-Identifier: GPL-2.0-or-later
"""By which interface the packets of a translated flow are taken to come in."""

from __future__ import annotations

import socket
from contextlib import closing

from atfnd.kernel.netlink.rtnl import links
from atfnd.model import FlowKey, Protocol
from atfnd.observe.nics.translations import NamespaceTranslations
from tests.forwards import ForwardingNet, forwarding_net

__all__: list[str] = []

FROM_GEN = FlowKey(
    Protocol.UDP, socket.inet_aton("10.78.1.2"), 9, socket.inet_aton("10.78.0.2"), 7000
)


def ingress(bed: ForwardingNet) -> str | None:
    with closing(NamespaceTranslations(bed.forwards.path)) as translations:
        found = translations.ingress(FROM_GEN)
    return None if found is None else links(bed.forwards.path)[found].name


def test_packets_come_in_by_the_nic_that_leads_back_to_their_source() -> None:
    with forwarding_net() as bed:
        assert ingress(bed) == "f0"
        for command in (
            "addr flush dev f0", "link add link f0 name m0 type macvlan mode passthru",
            "addr add 10.78.0.1/24 dev m0", "link set m0 up",
        ):  # fmt: skip
            bed.ip("forwards", command)
        assert ingress(bed) == "f0"
        for command in (
            "link del m0", "link add b0 type bridge", "link set f0 master b0",
            "addr add 10.78.0.1/24 dev b0", "link set b0 up",
        ):  # fmt: skip
            bed.ip("forwards", command)
        assert ingress(bed) == "f0"
        bed.ip("forwards", "link set f1 master b0")  # now it may be either
        assert ingress(bed) is None
