# SPDX-License-Identifier: GPL-2.0-or-later
"""Filters as the kernel's bytes: there and back, and against the structs of ethtool.h."""

from __future__ import annotations

import ctypes
import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.kernel.ethtool.flow_spec import (
    COUNT_AT,
    LOCATION_AT,
    RX_CLS_LOC_ANY,
    SIZE,
    decode,
    encode,
)
from atfnd.model import Filter, Match, Protocol

INS = 0x32
U8, U16, U32 = ctypes.c_uint8, ctypes.c_uint16.__ctype_be__, ctypes.c_uint32


class TcpIp4(ctypes.BigEndianStructure):
    _fields_ = (("src", U8 * 4), ("dst", U8 * 4), ("sport", U16), ("dport", U16), ("tos", U8))


class UserIp4(ctypes.BigEndianStructure):
    _fields_ = (
        ("src", U8 * 4), ("dst", U8 * 4), ("l4", U8 * 4), ("tos", U8), ("ip_ver", U8),
        ("proto", U8),
    )  # fmt: skip


class TcpIp6(ctypes.BigEndianStructure):
    _fields_ = (("src", U8 * 16), ("dst", U8 * 16), ("sport", U16), ("dport", U16), ("tos", U8))


class UserIp6(ctypes.BigEndianStructure):
    _fields_ = (("src", U8 * 16), ("dst", U8 * 16), ("l4", U8 * 4), ("tos", U8), ("proto", U8))


class Union(ctypes.Union):
    _fields_ = (
        ("tcp4", TcpIp4), ("user4", UserIp4), ("tcp6", TcpIp6), ("user6", UserIp6),
        ("hdata", U8 * 52),
    )  # fmt: skip


class Ext(ctypes.Structure):
    _fields_ = (
        ("padding", U8 * 2), ("h_dest", U8 * 6), ("vlan_etype", U8 * 2), ("vlan_tci", U8 * 2),
        ("data", U8 * 8),
    )  # fmt: skip


class Spec(ctypes.Structure):
    _fields_ = (
        ("flow_type", U32), ("h_u", Union), ("h_ext", Ext), ("m_u", Union), ("m_ext", Ext),
        ("ring_cookie", ctypes.c_uint64), ("location", U32),
    )  # fmt: skip


class Rxnfc(ctypes.Structure):
    _fields_ = (
        ("cmd", U32), ("flow_type", U32), ("data", ctypes.c_uint64), ("fs", Spec),
        ("rss_context", U32), ("rule_locs", U32 * 0),
    )  # fmt: skip


def network(size: int) -> st.SearchStrategy[tuple[bytes | None, int]]:
    """An address with its host bits zero, and its prefix; or any."""

    def cut(address: bytes, bits: int) -> tuple[bytes, int]:
        host = size * 8 - bits
        return (int.from_bytes(address, "big") >> host << host).to_bytes(size, "big"), bits

    some = st.builds(cut, st.binary(min_size=size, max_size=size), st.integers(1, size * 8))
    return st.just((None, 0)) | some


@st.composite
def matches(draw: st.DrawFn) -> Match:
    family = draw(st.sampled_from([4, 6]))
    protocol = draw(st.none() | st.integers(0, 255) | st.sampled_from(Protocol))
    src, dst = draw(network(4 if family == 4 else 16)), draw(network(4 if family == 4 else 16))
    ports = st.none() | st.integers(0, 65535) if protocol in set(Protocol) else st.none()
    return Match(family, protocol, *src, *dst, draw(ports), draw(ports))


def encoded(match: Match, queue: int = 1, location: int = 2) -> bytearray:
    buffer = bytearray(b"\xa5" * SIZE)  # what an earlier call left
    encode(memoryview(buffer), INS, match, queue, location)
    return buffer


@given(matches(), st.integers(0, 0xFFFFFFFF), st.integers(0, RX_CLS_LOC_ANY))
def test_there_and_back(match: Match, queue: int, location: int) -> None:
    assert decode(bytes(encoded(match, queue, location))) == Filter(location, match, queue)


def test_the_layout_is_the_kernels() -> None:
    assert ctypes.sizeof(Rxnfc) == SIZE
    assert Rxnfc.fs.offset + Spec.location.offset == LOCATION_AT
    assert Rxnfc.rss_context.offset == COUNT_AT


@pytest.mark.parametrize(
    "match",
    [
        Match(4, None, None, 0, None, 0, 1, None),
        Match(6, 47, None, 0, None, 0, None, 1),
        Match(4, 6, bytes(16), 32, None, 0, None, None),
        Match(6, 6, None, 0, bytes(4), 32, None, None),
        Match(4, 6, bytes(4), 0, None, 0, None, None),
        Match(4, 6, bytes(4), 33, None, 0, None, None),
    ],
)
def test_what_no_filter_can_say_is_refused(match: Match) -> None:
    with pytest.raises(OSError, match=r"port|address") as refusal:
        encoded(match)
    assert refusal.value.errno == errno.EINVAL


EXACT = Match(4, 6, b"\x0a\0\0\1", 32, b"\x0a\0\0\2", 32, 40000, 443)
WORDS = "flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 src-port 40000 dst-port 443 action 1"


def changed(match: Match = EXACT, /, **fields: object) -> Filter:
    """The rule of `match` with some fields set, named by their path (`m_u__tcp4__tos`)."""
    rxnfc = Rxnfc.from_buffer(encoded(match))
    for path, value in fields.items():
        *way, last = path.split("__")
        place = rxnfc.fs if path != "rss_context" else rxnfc
        for step in way:
            place = getattr(place, step)
        if isinstance(value, bytes):
            value = (U8 * len(value))(*value)
        setattr(place, last, value)
    return decode(bytes(rxnfc))


def tcp6(*, h: bool) -> Union:
    """A header that is compared whole, but for its flow label; or the mask of it."""
    made = Union()
    for field, size, value in (("src", 16, 1), ("dst", 16, 2)):
        address = (0x20010DB8 << 96 | value).to_bytes(16) if h else b"\xff" * 16
        setattr(made.tcp6, field, (U8 * size)(*address))
    made.tcp6.sport, made.tcp6.dport, made.tcp6.tos = (7, 443, 1) if h else (0xFFFF, 0xFFFF, 0xFF)
    return made


EXT, MAC_EXT, RSS = 1 << 31, 1 << 30, 1 << 29


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ring_cookie": (1 << 64) - 1}, WORDS.replace("action 1", "action -1")),
        ({"ring_cookie": (1 << 64) - 2}, WORDS.replace("action 1", "action -2")),
        ({"ring_cookie": 3 << 32 | 5}, WORDS.replace("action 1", "vf 2 queue 5")),
        ({"flow_type": 1 | RSS, "rss_context": 4}, f"{WORDS} context 4"),
        (
            {"m_u__tcp4__tos": 0xFF, "h_u__tcp4__tos": 4},
            WORDS.replace(" src-port", " tos 4 src-port"),
        ),
        (
            {"m_u__tcp4__src": b"\xff\0\xff\0"},
            WORDS.replace("10.0.0.1", "10.0.0.1 m 0.255.0.255"),
        ),
        ({"m_u__tcp4__dport": 0xFF}, WORDS.replace("443", "443 m 65280")),
        (
            {"flow_type": 1 | EXT, "h_ext__vlan_tci": b"\0\5", "m_ext__vlan_tci": b"\x0f\xff"},
            WORDS.replace("action", "vlan 0x0005 m 0xf000 action"),
        ),
        (
            {
                "flow_type": 1 | MAC_EXT,
                "h_ext__h_dest": b"\2\0\0\0\0\1",
                "m_ext__h_dest": b"\xff" * 6,
            },
            WORDS.replace("action", "dst-mac 02:00:00:00:00:01 action"),
        ),
        ({"flow_type": 0x13}, "flow-type 0x13 action 1"),
        (
            {"flow_type": 5, "h_u": tcp6(h=True), "m_u": tcp6(h=False)},
            "flow-type tcp6 src-ip 2001:db8::1 dst-ip 2001:db8::2 tclass 1 src-port 7 dst-port 443 "
            "action 1",
        ),
    ],
)
def test_other_shapes_are_given_in_ethtools_words(fields: dict[str, object], words: str) -> None:
    rule = changed(**fields)
    assert rule.match is None
    assert rule.other == words
    assert rule.queue == (1 if fields.keys().isdisjoint({"ring_cookie", "rss_context"}) else None)


def test_an_extension_that_compares_nothing_is_none() -> None:
    assert changed(flow_type=1 | EXT | MAC_EXT, h_ext__vlan_tci=b"\0\5") == Filter(2, EXACT, 1)
    assert changed(flow_type=1 | MAC_EXT, m_ext__padding=b"\xff\xff") == Filter(2, EXACT, 1)
    assert changed(h_ext__vlan_tci=b"\0\5", m_ext__vlan_tci=b"\xff\xff") == Filter(2, EXACT, 1)


def test_host_bits_a_driver_left_are_not_compared() -> None:
    rule = changed(m_u__tcp4__src=b"\xff\0\0\0")
    assert rule.match == EXACT._replace(src=b"\x0a\0\0\0", src_prefix=8)


def test_l4_bytes_are_another_shape() -> None:
    plain = EXACT._replace(protocol=47, src_port=None, dst_port=None)
    assert Rxnfc.from_buffer(encoded(plain)).fs.h_u.user4.ip_ver == 1  # ETH_RX_NFC_IP4
    rule = changed(plain, m_u__user4__l4=b"\xff\xff\0\0", h_u__user4__l4=b"\0\x16\0\0")
    assert "l4proto 47 l4data 0x00160000 m 0x0000ffff action 1" in (rule.other or "")
