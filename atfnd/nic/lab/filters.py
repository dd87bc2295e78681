# SPDX-License-Identifier: GPL-2.0-or-later
"""The emulated device's table of ntuple filters with locations, as ethtool -N gives a real NIC.

The truth is the BPF map `locations` (masked tuple to location): a filter exists from the instant
its key is there until the instant it is not, each one map update. Slots, free bits and mask
counts are book-keeping that `_repair` makes again from it, so a writer may die between any two
writes.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from atfnd.bpf import _bpf
from atfnd.bpf.layout import layout
from atfnd.model import Filter, Match, Protocol
from atfnd.nic.lab.device import FILTER, MASKS, LabDevice
from atfnd.nic.location import choose, is_wide

__all__ = ["LabNtuple"]


def _offset(name: str, field: str) -> int:
    return next(at for found, at, _ in _bpf.layout("classifier", name)[1] if found == field)


TUPLE = layout("classifier", "tuple").codec
MASK_NUMBER = _offset("tuple", "mask")
FILTER_WORDS, QUEUE_WORD = FILTER.size // 4, _offset("filter", "queue") // 4
WITH_PORTS = (None, *Protocol)


def _refuse(code: int, what: str) -> OSError:
    return OSError(code, f"{os.strerror(code)}: {what}")


def _prefix(bits: int, size: int) -> bytes:
    """The first `bits` of `size` bytes set."""
    return ((1 << bits) - 1 << size * 8 - bits).to_bytes(size, "big")


def _check_address(address: bytes | None, prefix: int, size: int) -> None:
    if address is None:
        return
    if len(address) != size or not 0 < prefix <= size * 8:
        raise _refuse(errno.EINVAL, f"address of {len(address)} bytes with prefix {prefix}")
    if int.from_bytes(address, "big") & ~int.from_bytes(_prefix(prefix, size), "big"):
        raise _refuse(errno.EINVAL, f"address has bits set behind its prefix of {prefix}")


def _check(match: Match) -> None:
    """OSError(EINVAL) for a filter no packet could ever match, or that is not well formed."""
    if match.family not in (4, 6):
        raise _refuse(errno.EINVAL, f"address family {match.family}")
    size = 4 if match.family == 4 else 16
    _check_address(match.src, match.src_prefix, size)
    _check_address(match.dst, match.dst_prefix, size)
    if match.protocol is not None and not 0 <= match.protocol <= 255:
        raise _refuse(errno.EINVAL, f"protocol {match.protocol}")
    for port in (match.src_port, match.dst_port):
        if port is not None and (not 0 < port <= 65535 or match.protocol not in WITH_PORTS):
            raise _refuse(errno.EINVAL, f"port {port} with protocol {match.protocol}")


@lru_cache(maxsize=256)
def _mask(
    size: int, src_bits: int, dst_bits: int, protocol: bool, src_port: bool, dst_port: bool
) -> bytes:
    return TUPLE.pack(
        _prefix(src_bits, size),
        _prefix(dst_bits, size),
        0xFFFF * src_port,
        0xFFFF * dst_port,
        0xFF * protocol,
        0,
        0,
    )


def _mask_of(match: Match) -> bytes:
    return _mask(
        4 if match.family == 4 else 16,
        match.src_prefix if match.src else 0,
        match.dst_prefix if match.dst else 0,
        match.protocol is not None,
        match.src_port is not None,
        match.dst_port is not None,
    )


def _key_of(match: Match, number: int) -> bytes:
    """The key of the map `locations`; struct packs short addresses with zeros behind them."""
    return TUPLE.pack(
        match.src or b"",
        match.dst or b"",
        socket.htons(match.src_port or 0),
        socket.htons(match.dst_port or 0),
        match.protocol or 0,
        number,
        0,
    )


def _match_of(key: bytes, mask: bytes) -> Match:
    """The inverse of `_key_of`."""
    src, dst, src_port, dst_port, protocol, number, _ = TUPLE.unpack(key)
    src_mask, dst_mask, src_port_mask, dst_port_mask, protocol_mask, _, _ = TUPLE.unpack(mask)
    family, size = (4, 4) if number < MASKS else (6, 16)
    src_bits = int.from_bytes(src_mask, "big").bit_count()
    dst_bits = int.from_bytes(dst_mask, "big").bit_count()
    return Match(
        family,
        protocol if protocol_mask else None,
        src[:size] if src_bits else None,
        src_bits,
        dst[:size] if dst_bits else None,
        dst_bits,
        socket.ntohs(src_port) if src_port_mask else None,
        socket.ntohs(dst_port) if dst_port_mask else None,
    )


class LabNtuple:
    """insert, delete and list; each takes the table's lock. Errors as in `nic.Nic`."""

    def __init__(self, device: LabDevice) -> None:
        self._device = device

    def insert(self, match: Match, queue: int, location: int | None) -> int:
        """One or two map operations; a new queue for a filter that is there is one word written."""
        device = self._device
        _check(match)
        if not 0 <= queue < device.queues:
            raise _refuse(errno.EINVAL, f"queue {queue} of {device.queues}")
        if location is not None and not 0 <= location < device.slots:
            raise _refuse(errno.EINVAL, f"location {location} of {device.slots}")
        mask = _mask_of(match)
        with self._whole():
            number = self._mask_number(match.family, mask)
            key = _key_of(match, number)
            if device.mask_filters[number] and (found := _bpf.map_lookup(device.locations_fd, key)):
                there = int.from_bytes(found, "little")
                if there != location:
                    raise _refuse(errno.EEXIST, f"location {there} has this match")
                device.filters_u32[there * FILTER_WORDS + QUEUE_WORD] = queue
                return there
            if location is None:
                location = self._free_location(is_wide(match))
            with device.changing():
                if self._used(location):
                    self._remove(location)
                self._add(location, key, mask, queue)
            return location

    def delete(self, location: int) -> None:
        with self._whole():
            if not 0 <= location < self._device.slots or not self._used(location):
                raise _refuse(errno.ENOENT, f"no filter at location {location}")
            with self._device.changing():
                self._remove(location)

    def filter(self, location: int) -> Filter | None:
        device = self._device
        with self._whole():
            if not 0 <= location < device.slots:
                return None
            key, queue, used, hits = FILTER.unpack_from(device.filters, location * FILTER.size)
            at = key[MASK_NUMBER] * TUPLE.size
            mask = bytes(device.mask[at : at + TUPLE.size])
        return Filter(location, _match_of(key, mask), queue, hits) if used else None

    def list(self) -> list[Filter]:
        device = self._device
        with self._whole():
            slots, masks = bytes(device.filters), bytes(device.mask)
        shapes = [masks[at : at + TUPLE.size] for at in range(0, len(masks), TUPLE.size)]
        return [
            Filter(location, _match_of(key, shapes[key[MASK_NUMBER]]), queue, hits)
            for location, (key, queue, used, hits) in enumerate(FILTER.iter_unpack(slots))
            if used
        ]

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """The lock, over a table whose book-keeping is right."""
        with self._device.locked():
            if self._device.left_busy:
                with self._device.changing():
                    self._repair()
            yield

    def _used(self, location: int) -> bool:
        return not self._device.free[location // 8] >> location % 8 & 1

    def _free_location(self, wide: bool) -> int:
        slots = self._device.slots
        free = int.from_bytes(bytes(self._device.free[: (slots + 7) // 8]), "little")
        location = choose(free, slots, wide, self._is_wide)
        if location is None:
            raise _refuse(errno.ENOSPC, f"no location of {slots} is free for it")
        return location

    def _is_wide(self, location: int) -> bool:
        """The filter there is for many."""
        device, at = self._device, location * FILTER.size
        key = bytes(device.filters[at : at + TUPLE.size])
        number = key[MASK_NUMBER]
        mask = bytes(device.mask[number * TUPLE.size : (number + 1) * TUPLE.size])
        return is_wide(_match_of(key, mask))

    def _mask_number(self, family: int, mask: bytes) -> int:
        """The number of this mask, or the one it can have."""
        device, first = self._device, 0 if family == 4 else MASKS
        unused = None
        for number in range(first, first + device.masks[first // MASKS]):
            if not device.mask_filters[number]:
                unused = number if unused is None else unused
            elif device.mask[number * TUPLE.size : (number + 1) * TUPLE.size] == mask:
                return number
        if unused is None:
            unused = first + device.masks[first // MASKS]
            if unused == first + MASKS:
                raise _refuse(errno.ENOSPC, f"all {MASKS} masks of IPv{family} are in use")
        return unused

    def _add(self, location: int, key: bytes, mask: bytes, queue: int) -> None:
        device, number = self._device, key[MASK_NUMBER]
        if not device.mask_filters[number]:
            device.mask[number * TUPLE.size : (number + 1) * TUPLE.size] = mask
        device.mask_filters[number] += 1
        self._count_masks(number // MASKS)
        FILTER.pack_into(device.filters, location * FILTER.size, key, queue, 1, 0)
        device.free[location // 8] &= ~(1 << location % 8) & 0xFF
        _bpf.map_update(device.locations_fd, key, location.to_bytes(4, "little"))

    def _remove(self, location: int) -> None:
        device, at = self._device, location * FILTER.size
        key = bytes(device.filters[at : at + TUPLE.size])
        _bpf.map_delete(device.locations_fd, key)
        FILTER.pack_into(device.filters, at, b"", 0, 0, 0)
        device.free[location // 8] |= 1 << location % 8
        device.mask_filters[key[MASK_NUMBER]] -= 1
        self._count_masks(key[MASK_NUMBER] // MASKS)

    def _count_masks(self, family: int) -> None:
        """Have the classifier look at no more masks than needed: usually one."""
        used_by = self._device.mask_filters[family * MASKS : (family + 1) * MASKS].tolist()
        self._device.masks[family] = max((i + 1 for i, n in enumerate(used_by) if n), default=0)

    def _repair(self) -> None:
        """Make the book-keeping again from the map: the slots in use are those it points to."""
        device = self._device
        used = {}
        for key, value in _bpf.map_items(device.locations_fd):
            used[int.from_bytes(value, "little")] = key
        counts = [0] * (2 * MASKS)
        free = (1 << device.slots) - 1
        for location in range(device.slots):
            at = location * FILTER.size
            if location not in used:
                FILTER.pack_into(device.filters, at, b"", 0, 0, 0)
                continue
            free &= ~(1 << location)
            counts[used[location][MASK_NUMBER]] += 1
        device.free[: (device.slots + 7) // 8] = free.to_bytes((device.slots + 7) // 8, "little")
        for number, count in enumerate(counts):
            device.mask_filters[number] = count
        self._count_masks(0)
        self._count_masks(1)
