# SPDX-License-Identifier: GPL-2.0-or-later
"""Every driver that we know something about, read from Linux 7.2 (drivers/net/ethernet/,
virtio_net.c).

`python -m tests.nic.test_hardware_page` writes docs/hardware.md anew from this table.
"""

from __future__ import annotations

import errno

from atfnd.model import Actuator
from atfnd.nic.drivers import (
    ALL,
    Capacity,
    Driver,
    Hashing,
    Loses,
    Masks,
    Overwrite,
    Placing,
    flow_types,
)

__all__ = ["DRIVERS", "driver_of"]

_TCP_UDP = flow_types("tcp udp", "tcp udp")
_IFDOWN, _CHANNELS, _RESET, _NTUPLE_OFF = (
    frozenset({Loses.IFDOWN}),
    frozenset({Loses.CHANNELS}),
    frozenset({Loses.RESET}),
    frozenset({Loses.NTUPLE_OFF}),
)


def _no_filters(name: str, nics: str, *quirks: str, hashing: Hashing = Hashing.SEEN) -> Driver:
    return Driver(name, nics, actuator=Actuator.NONE, hashing=hashing, quirks=quirks)


DRIVERS = (
    Driver(
        "ixgbe",
        "Intel 82599, X520, X540, X550",
        flow_types("tcp udp sctp"),
        Actuator.IN_PLACE,
        Masks.ONE,
        Placing.EXPLICIT,
        Capacity.LIST,
        overwrite=Overwrite.IN_PLACE,
        needs_ntuple=True,
        loses=_IFDOWN | _CHANNELS,
        arfs=False,
        hashing=Hashing.AS_SAID,
        quirks=(
            "switching ntuple on resets the NIC and ends ATR, its automatic steering",
            "every refusal is EINVAL, except EOPNOTSUPP for ntuple off",
        ),
    ),
    Driver(
        "i40e",
        "Intel X710, XL710, XXV710, X722",
        ALL,
        Actuator.SHORT_GAP,
        Masks.PER_TYPE,
        Placing.EXPLICIT,
        overwrite=Overwrite.GAP,
        asynchronous=True,
        needs_ntuple=True,
        loses=_NTUPLE_OFF,
        atr_flag="flow-director-atr",
        arfs=False,
        hashing=Hashing.AS_SAID,
        quirks=(
            "a full table is found later: the filter is accepted, then dropped",
            "a TCP filter ends ATR; when the last one goes, ATR comes back",
            "two IPv6 flows of equal source /64 and ports are taken for duplicates (EINVAL)",
        ),
    ),
    Driver(
        "ice",
        "Intel E810, E820, E830",
        ALL,
        Actuator.SHORT_GAP,
        Masks.PER_TYPE,
        Placing.EXPLICIT,
        overwrite=Overwrite.GAP,
        asynchronous=True,
        loses=_NTUPLE_OFF,
        hashing=Hashing.AS_SAID,
        quirks=(
            "ethtool -L is refused (EOPNOTSUPP) while any filter exists: atfnctl pause first",
            "aRFS is armed as soon as rps_sock_flow_entries is set",
        ),
    ),
    Driver(
        "iavf",
        "Intel virtual functions",
        ALL,
        masks=Masks.PER_TYPE,
        placing=Placing.EXPLICIT,
        slots=128,
        overwrite=Overwrite.REFUSED,
        asynchronous=True,
        gates=("the physical function must offer Flow Director",),
        arfs=False,
        hashing=Hashing.AS_SAID,
        quirks=("a filter is accepted at once and added milliseconds later, or it vanishes",),
    ),
    _no_filters("igb", "Intel 82576, I210, I350", "MAC and VLAN filters only (16)"),
    _no_filters("igc", "Intel I225, I226", "MAC and VLAN filters only (65)"),
    _no_filters("e1000e", "Intel 82574 and LAN on board", "one receive queue"),
    Driver(
        "idpf",
        "Intel IPU E2000",
        flow_types("tcp udp"),
        placing=Placing.EXPLICIT,
        overwrite=Overwrite.REFUSED,
        quirks=("after a reset the list still shows filters that the NIC has lost",),
    ),
    Driver(
        "mlx4_en",
        "NVIDIA ConnectX-3",
        flow_types("tcp udp"),
        masks=Masks.ANY,
        placing=Placing.EXPLICIT,
        slots=256,
        overwrite=Overwrite.GAP,
        loses=_IFDOWN | _CHANNELS | _RESET,
        gates=("device-managed steering must be on: options mlx4_core log_num_mgm_entry_size=-1",),
        hashing=Hashing.AS_SAID,
        quirks=("a refused change of a filter leaves none",),
    ),
    Driver(
        "mlx5_core",
        "NVIDIA ConnectX-4 to ConnectX-8, BlueField",
        _TCP_UDP,
        masks=Masks.ANY,
        placing=Placing.EXPLICIT,
        slots=1024,
        overwrite=Overwrite.GAP,
        hashing=Hashing.TRANSFORM_AS_SAID,
        quirks=(
            "ntuple on is not needed: there it enables aRFS only",
            "a refused change of a filter leaves none",
            "the same match is accepted at two locations",
        ),
    ),
    Driver(
        "bnxt_en",
        "Broadcom NetXtreme-C, NetXtreme-E",
        _TCP_UDP,
        masks=Masks.ANY,
        placing=Placing.DRIVER,
        overwrite=Overwrite.REFUSED,
        needs_ntuple=True,
        quirks=(
            "EPERM while ntuple is off, EAGAIN while the link is down",
            "an aRFS filter of the same flow is a duplicate (EEXIST)",
            "a change of the MAC address clears every filter",
        ),
    ),
    _no_filters(
        "ena", "Amazon EC2", "the in-tree driver has RSS table and key only", hashing=Hashing.OWN
    ),  # it starts with ones, over a key in reverse
    Driver(
        "sfc",
        "AMD Solarflare SFN7000, SFN8000, X2",
        _TCP_UDP,
        Actuator.IN_PLACE,
        Masks.EXACT,
        Placing.DRIVER,
        Capacity.UNSAID,
        full_errno=errno.EBUSY,
        overwrite=Overwrite.BY_MATCH,
        hashing=Hashing.AS_SAID,
        quirks=("filters outrank aRFS",),
    ),
    Driver(
        "qede",
        "Marvell FastLinQ 41000, 45000",
        _TCP_UDP,
        masks=Masks.ONE,
        placing=Placing.EXPLICIT,
        slots=256,
        overwrite=Overwrite.REFUSED,
        quirks=("the table is shared with aRFS", "EPERM without aRFS support"),
    ),
    _no_filters("enic", "Cisco VIC", "filters can be listed only (those of aRFS)"),
    Driver(
        "cxgb4",
        "Chelsio T4, T5, T6",
        _TCP_UDP,
        masks=Masks.ANY,
        placing=Placing.EXPLICIT,
        overwrite=Overwrite.REFUSED,
        gates=("it must have been up once (else EAGAIN): ip link set {nic} up",),
        arfs=False,
    ),
    Driver(
        "fbnic",
        "Meta",
        _TCP_UDP,
        masks=Masks.ANY,
        placing=Placing.DRIVER,
        capacity=Capacity.UNSAID,
        slots=48,
        overwrite=Overwrite.REFUSED,
        arfs=False,
        quirks=("8 source and 8 destination addresses in all", "rewritten on ifup"),
    ),
    Driver(
        "gve",
        "Google Compute Engine",
        ALL,
        placing=Placing.EXPLICIT,
        needs_ntuple=True,
        loses=_IFDOWN | _RESET,
        hashing=Hashing.OWN,
        quirks=("what an insert at a used location does is the device's choice",),
    ),
    _no_filters(
        "virtio_net",
        "KVM and cloud guests",
        "RSS table through the control queue",
        hashing=Hashing.AS_SAID,
    ),
    _no_filters("vmxnet3", "VMware guests", "RSS table only"),
    Driver(
        "hns3",
        "HiSilicon Kunpeng",
        ALL,
        Actuator.IN_PLACE,
        Masks.ANY,
        Placing.EXPLICIT,
        overwrite=Overwrite.IN_PLACE,
        quirks=("the first filter wipes and disables aRFS",),
    ),
    Driver(
        "rvu-nicpf",
        "Marvell OCTEON TX2, CN10K",
        ALL,
        Actuator.IN_PLACE,
        Masks.ANY,
        Placing.EXPLICIT,
        slots=16,
        overwrite=Overwrite.IN_PLACE,
        needs_ntuple=True,
        gates=("it must be up: ip link set {nic} up",),
        arfs=False,
        quirks=("16 slots unless devlink dev param mcam_count says more",),
    ),
)

_BY_NAME = {driver.name: driver for driver in DRIVERS}


def driver_of(name: str | None) -> Driver:
    """By the name that ETHTOOL_GDRVINFO gives; an unknown one gets the safe default."""
    return _BY_NAME.get(name or "") or Driver(name or "unknown", asynchronous=True)
