# SPDX-License-Identifier: GPL-2.0-or-later
"""BPF maps by descriptor: which are refused, and what happens when memory is short."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable, Iterator

import pytest

from atfnd.bpf import _bpf

HASH, ARRAY, PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH, QUEUE = 1, 2, 5, 6, 10, 22
BIG = 64 << 20
KEY = bytes(4)
_libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)


@contextlib.contextmanager
def made(kind: int, value_bytes: int = 8, key_bytes: int = 4) -> Iterator[int]:
    """A map of one entry (enum bpf_map_type)."""
    fd = _libbpf.bpf_map_create(kind, b"tried", key_bytes, value_bytes, 1, None)
    assert fd >= 0, os.strerror(-fd)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def no_room_for(size: int) -> Iterator[None]:
    """malloc(size) fails: the address space may grow by half of it."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + size // 2, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("kind", [PERCPU_HASH, PERCPU_ARRAY, LRU_PERCPU_HASH])
def test_a_map_with_a_value_for_each_cpu_is_refused(kind: int) -> None:
    with made(kind) as fd:
        for call in (_bpf.map_lookup, _bpf.map_take, _bpf.map_delete):
            with pytest.raises(ValueError, match="map tried has a value for each CPU"):
                call(fd, KEY)
        with pytest.raises(ValueError, match="each CPU"):
            _bpf.map_update(fd, KEY, bytes(8))
        with pytest.raises(ValueError, match="each CPU"):
            _bpf.map_items(fd)


@pytest.mark.parametrize(
    "call",
    [lambda fd: _bpf.map_items(fd), lambda fd: _bpf.map_lookup(fd, KEY)],
    ids=["items", "lookup"],
)
def test_too_little_memory_is_a_memory_error(call: Callable[[int], object]) -> None:
    with made(ARRAY, BIG) as fd, no_room_for(BIG), pytest.raises(MemoryError):
        call(fd)


def test_a_map_that_cannot_be_walked_is_not_an_empty_one() -> None:
    with made(QUEUE, key_bytes=0) as fd, pytest.raises(OSError, match="map walk"):
        _bpf.map_items(fd)


def test_an_empty_map_has_no_items() -> None:
    with made(HASH) as fd:
        assert _bpf.map_items(fd) == []
        _bpf.map_update(fd, KEY, b"12345678")
        assert _bpf.map_items(fd) == [(KEY, b"12345678")]
