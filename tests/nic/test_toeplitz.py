# SPDX-License-Identifier: GPL-2.0-or-later
"""The Toeplitz hash against Microsoft's published vectors and its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.model import FlowKey, Rss, Transform
from atfnd.model.toeplitz import (
    INPUT_BYTES,
    KEY_BYTES,
    MICROSOFT_KEY,
    hash_table,
    rss_hash,
    rss_queue,
    rss_value,
    symmetric_key,
    toeplitz,
)
from tests.labs import packed

# "Verifying the RSS hash calculation": destination, port, source, port, hash of the addresses, hash
# with ports.
VECTORS = [
    ("161.142.100.80", 1766, "66.9.149.187", 2794, 0x323E8FC2, 0x51CCC178),
    ("65.69.140.83", 4739, "199.92.111.2", 14230, 0xD718262A, 0xC626B0EA),
    ("12.22.207.184", 38024, "24.19.198.95", 12898, 0xD2D0A5DE, 0x5C2B394A),
    ("209.142.163.6", 2217, "38.27.205.30", 48228, 0x82989176, 0xAFC7327F),
    ("202.188.127.2", 1303, "153.39.163.191", 44251, 0x5D1809C5, 0x10E828A2),
    ("3ffe:2501:200:3::1", 1766, "3ffe:2501:200:1fff::7", 2794, 0x2CC18CD5, 0x40207D3D),
    ("ff02::1", 4739, "3ffe:501:8::260:97ff:fe40:efab", 14230, 0x0F0C461C, 0xDDE51BBF),
    (
        "fe80::200:f8ff:fe21:67cf",
        38024,
        "3ffe:1900:4545:3:200:f8ff:fe21:67cf",
        44251,
        0x4B61E985,
        0x02D1FEEF,
    ),
]


@pytest.mark.parametrize(("dst", "dst_port", "src", "src_port", "two", "four"), VECTORS)
def test_microsoft_vectors(
    dst: str, dst_port: int, src: str, src_port: int, two: int, four: int
) -> None:
    assert rss_hash(MICROSOFT_KEY, packed(src), packed(dst)) == two
    assert rss_hash(MICROSOFT_KEY, packed(src), packed(dst), (src_port, dst_port)) == four


ports = st.integers(1, 65535)
addresses = st.sampled_from([4, 16]).flatmap(
    lambda size: st.tuples(*[st.binary(min_size=size, max_size=size).filter(any)] * 2)
)


# The first vector of each family, and a table that shows the hash's low seven bits.
FLOW = FlowKey(6, packed("161.142.100.80"), 1766, packed("66.9.149.187"), 2794)
FLOW6 = FlowKey(17, packed("3ffe:2501:200:3::1"), 1766, packed("3ffe:2501:200:1fff::7"), 2794)
TABLE = tuple(range(128))


def test_the_queue_is_the_tables_entry() -> None:
    rss = Rss(MICROSOFT_KEY, TABLE)
    assert rss_queue(rss, FLOW) == 0x51CCC178 % 128
    longer = Rss(MICROSOFT_KEY + bytes(range(12)), TABLE)  # ice and i40e have 52 bytes
    assert rss_queue(rss, FLOW6) == rss_queue(longer, FLOW6) == 0x40207D3D % 128
    shorter = Rss(MICROSOFT_KEY[:16], TABLE)  # long enough for this flow
    assert rss_queue(shorter, FLOW) == 0x51CCC178 % 128


def test_what_is_hashed_by_addresses_only() -> None:
    """UDP is, on many NICs, until `ethtool -N eth0 rx-flow-hash udp4 sdfn`."""
    rss = Rss(MICROSOFT_KEY, TABLE, addresses_only=frozenset({(6, 17)}))
    assert rss_queue(rss, FLOW6) == 0x2CC18CD5 % 128
    assert rss_queue(rss, FLOW) == 0x51CCC178 % 128


@pytest.mark.parametrize(
    "rss",
    [
        Rss(b"", TABLE),
        Rss(MICROSOFT_KEY, ()),
        Rss(MICROSOFT_KEY, TABLE, another="gve has a hash of its own"),
        Rss(MICROSOFT_KEY, TABLE, other_fields=frozenset({(6, 17)})),
        Rss(MICROSOFT_KEY[:39], TABLE),
    ],
    ids=["no key", "no table", "another hash", "other fields", "short key"],
)
def test_nothing_is_predicted(rss: Rss) -> None:
    assert rss_queue(rss, FLOW6) is None


@given(addresses, ports, ports, st.sampled_from([40, 52]))
def test_by_a_symmetric_key_or_transform_both_directions_have_one_hash(
    pair: tuple[bytes, bytes], one: int, two: int, length_bytes: int
) -> None:
    (src, dst), key = pair, symmetric_key(length_bytes)
    assert len(key) == length_bytes
    assert rss_hash(key, src, dst) == rss_hash(key, dst, src)
    there, back = FlowKey(6, src, one, dst, two), FlowKey(6, dst, two, src, one)
    for of, transform in (
        (key, Transform.NONE),
        (MICROSOFT_KEY, Transform.XOR),
        (MICROSOFT_KEY, Transform.OR_XOR),
    ):
        rss = Rss(of, TABLE)
        assert rss_value(rss, there, transform) == rss_value(rss, back, transform)


def test_what_a_transform_hashes() -> None:
    """include/uapi/linux/ethtool.h: of each pair of fields both copies are the exclusive or; or one
    is, and the other the or."""
    rss, key = Rss(MICROSOFT_KEY, TABLE), FlowKey(6, b"\x0a\0\0\1", 0x0F0F, b"\x0a\0\0\6", 0x00FF)
    xor, either = b"\0\0\0\7", b"\x0a\0\0\7"
    by_xor = toeplitz(MICROSOFT_KEY, xor + xor + b"\x0f\xf0\x0f\xf0")
    by_or = toeplitz(MICROSOFT_KEY, either + xor + b"\x0f\xff\x0f\xf0")
    assert rss_value(rss, key, Transform.XOR) == by_xor
    assert rss_value(rss, key, Transform.OR_XOR) == by_or


@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.binary(max_size=INPUT_BYTES))
def test_the_table_is_the_hash(key: bytes, data: bytes) -> None:
    table, result = hash_table(key), 0
    for position, byte in enumerate(data):
        result ^= table[position * 256 + byte]
    assert result == toeplitz(key, data)
