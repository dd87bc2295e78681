# SPDX-License-Identifier: GPL-2.0-or-later
"""A filter as the kernel passes it: struct ethtool_rx_flow_spec inside struct ethtool_rxnfc.

Pure: writes and reads a buffer (include/uapi/linux/ethtool.h). Addresses and ports are in network
byte order; a mask bit that is set is compared.
"""

from __future__ import annotations

import errno
import struct

from atfnd.kernel.ethtool.flow_words import FLOW_EXT, FLOW_MAC_EXT, FLOW_RSS, flow_words
from atfnd.model import Filter, Match, Protocol, network_of

__all__ = ["COUNT_AT", "LOCATION_AT", "RX_CLS_LOC_ANY", "SIZE", "decode", "encode"]

RX_CLS_LOC_ANY = 0xFFFFFFFF

# cmd, flow_type, data; then the flow_spec: flow_type, what is compared, ring_cookie, location; then
# rule_cnt or rss_context. Native alignment: of u64 it is not 8 everywhere.
_WHOLE = struct.Struct("@IIQI144sQI0QI")
SIZE = struct.calcsize("@IIQI144sQI0QI0Q")
_SPEC = struct.Struct("@IIQI")
_TAIL = struct.Struct("@QI0QI")
_TAIL_AT = struct.calcsize("@IIQI144s0Q")
LOCATION_AT = _TAIL_AT + 8
COUNT_AT = _WHOLE.size - 4
_BODY_AT = _SPEC.size

# Values and masks, each 52 bytes of h_u and 20 of h_ext.
# struct ethtool_tcpip4_spec, _tcpip6_spec: src, dst, ports, tos
_PORTS = {
    4: struct.Struct(">" + "4s4sHHB39x20s" * 2),
    6: struct.Struct(">" + "16s16sHHB15x20s" * 2),
}
# struct ethtool_usrip4_spec, _usrip6_spec: src, dst, four bytes of L4, tos, (ip_ver,) protocol
_PLAIN4 = struct.Struct(">" + "4s4s4sBBB37x20s" * 2)
_PLAIN6 = struct.Struct(">" + "16s16s4sBB14x20s" * 2)

_OF_FLOW_TYPE: dict[int, tuple[int, int | None]] = {
    0x01: (4, int(Protocol.TCP)),
    0x02: (4, int(Protocol.UDP)),
    0x03: (4, int(Protocol.SCTP)),
    0x05: (6, int(Protocol.TCP)),
    0x06: (6, int(Protocol.UDP)),
    0x07: (6, int(Protocol.SCTP)),
}
_FLOW_TYPE = {of: number for number, of in _OF_FLOW_TYPE.items()}
_IPV4_USER, _IPV6_USER = 0x0D, 0x0E
_ETH_RX_NFC_IP4 = 1

_MASKS = {
    family: [((1 << n) - 1 << size * 8 - n).to_bytes(size, "big") for n in range(size * 8 + 1)]
    for family, size in ((4, 4), (6, 16))
}
_BITS = {mask: bits for masks in _MASKS.values() for bits, mask in enumerate(masks)}


def encode(buffer: memoryview, command: int, match: Match, queue: int, location: int) -> None:
    """Write a whole struct ethtool_rxnfc. OSError(EINVAL): ports without their protocol, or an
    address that is none: no filter could say that."""
    family, protocol, src, src_prefix, dst, dst_prefix, src_port, dst_port = match
    src, src_mask = _masked(family, src, src_prefix)
    dst, dst_mask = _masked(family, dst, dst_prefix)
    flow_type = _FLOW_TYPE.get((family, protocol))
    if flow_type is not None:
        _PORTS[family].pack_into(
            buffer, _BODY_AT, src, dst, src_port or 0, dst_port or 0, 0, b"", src_mask, dst_mask,
            0 if src_port is None else 0xFFFF, 0 if dst_port is None else 0xFFFF, 0, b"",
        )  # fmt: skip
    elif src_port is not None or dst_port is not None:
        raise OSError(errno.EINVAL, f"ports of protocol {protocol}")
    else:
        number, number_mask = protocol or 0, 0 if protocol is None else 0xFF
        if family == 4:
            flow_type = _IPV4_USER
            _PLAIN4.pack_into(
                buffer, _BODY_AT, src, dst, b"", 0, _ETH_RX_NFC_IP4, number, b"",
                src_mask, dst_mask, b"", 0, 0, number_mask, b"",
            )  # fmt: skip
        else:
            flow_type = _IPV6_USER
            _PLAIN6.pack_into(
                buffer, _BODY_AT, src, dst, b"", 0, number, b"",
                src_mask, dst_mask, b"", 0, number_mask, b"",
            )  # fmt: skip
    _SPEC.pack_into(buffer, 0, command, 0, 0, flow_type)
    _TAIL.pack_into(buffer, _TAIL_AT, queue, location, 0)


def _masked(family: int, address: bytes | None, prefix: int) -> tuple[bytes, bytes]:
    """Address and mask, empty (which struct fills with zeros) for any."""
    if address is None:
        return b"", b""
    masks = _MASKS[family]
    if len(address) != len(masks[0]) or not 0 < prefix < len(masks):
        raise OSError(errno.EINVAL, f"IPv{family} address {address.hex()} with prefix {prefix}")
    return address, masks[prefix]


def decode(buffer: memoryview | bytes) -> Filter:
    """Read a whole struct ethtool_rxnfc: a filter of ours, or any other one in words."""
    _, _, _, flow_type, body, cookie, location, context = _WHOLE.unpack_from(buffer)
    queue = cookie if cookie <= 0xFFFFFFFF and not flow_type & FLOW_RSS else None
    match = None if queue is None else _match(flow_type, body)
    if match is not None:
        return Filter(location, match, queue)
    return Filter(location, None, queue, None, flow_words(flow_type, body, cookie, context))


def _match(flow_type: int, body: bytes) -> Match | None:
    """What `encode` would write so, None for everything else."""
    if flow_type & (FLOW_EXT | FLOW_MAC_EXT):
        if _extended(flow_type, body[-20:]):
            return None
        flow_type &= ~(FLOW_EXT | FLOW_MAC_EXT)
    family, protocol = _OF_FLOW_TYPE.get(flow_type, (0, None))
    src_port = dst_port = None
    if family:
        src, dst, src_port, dst_port, _, _, *masks, tos, _ = _PORTS[family].unpack(body)
        src_mask, dst_mask, src_port_mask, dst_port_mask = masks
        if src_port_mask not in (0, 0xFFFF) or dst_port_mask not in (0, 0xFFFF):
            return None
        src_port = src_port if src_port_mask else None
        dst_port = dst_port if dst_port_mask else None
    elif flow_type in (_IPV4_USER, _IPV6_USER):
        if flow_type == _IPV4_USER:
            family = 4
            src, dst, _, _, _, number, _, *masks, tos, _, number_mask, _ = _PLAIN4.unpack(body)
        else:
            family = 6
            src, dst, _, _, number, _, *masks, tos, number_mask, _ = _PLAIN6.unpack(body)
        src_mask, dst_mask, l4_mask = masks
        if any(l4_mask) or number_mask not in (0, 0xFF):
            return None
        protocol = number if number_mask else None
    else:
        return None
    src_bits, dst_bits = _BITS.get(src_mask), _BITS.get(dst_mask)
    if tos or src_bits is None or dst_bits is None:
        return None
    src, dst = _network(src, src_bits), _network(dst, dst_bits)
    return Match(family, protocol, src, src_bits, dst, dst_bits, src_port, dst_port)


def _extended(flow_type: int, mask: bytes) -> bool:
    """The mask of struct ethtool_flow_ext compares a MAC address, a VLAN or user data."""
    mac = flow_type & FLOW_MAC_EXT and any(mask[2:8])
    return bool(mac or (flow_type & FLOW_EXT and any(mask[8:])))


def _network(address: bytes, bits: int) -> bytes | None:
    """The address with its host bits zero; None when nothing of it is compared."""
    return network_of(address, bits) if bits else None
