# SPDX-License-Identifier: GPL-2.0-or-later
"""The cache model of the counted machine alone, on accesses whose right counts are known: eight
CPUs, four to an LLC."""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from bench.bed import succeed
from bench.counted.build import PLUGIN
from bench.counted.counts import KINDS

SOURCE = Path(__file__).parents[2] / "bench/counted/cache.c"
CPUS, CLUSTER = 8, 4
KIB = 1024 // 64  # lines
MIB = 1024 * KIB
Touch = Callable[[int, int, bool], str]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("cache") / "cache.so"
    exported = [word for word in PLUGIN if word != "-fvisibility=hidden"]
    succeed(*exported, "-o", str(path), str(SOURCE))
    return ctypes.CDLL(str(path))


@pytest.fixture
def touch(library: ctypes.CDLL) -> Touch:
    """CPU, line, store -> the kind; of caches that are empty at first."""
    library.cache_init.restype = ctypes.c_bool
    assert library.cache_init(CPUS, CLUSTER)
    call = library.cache_touch
    call.argtypes = (ctypes.c_int, ctypes.c_uint32, ctypes.c_bool)
    return lambda cpu, line, store: KINDS[call(cpu, line, store)]


def loads(touch: Touch, lines: Iterable[int], cpu: int = 0) -> Counter[str]:
    return Counter(touch(cpu, line, False) for line in lines)


@pytest.mark.parametrize(
    ("size", "kind"), [(24 * KIB, "l1"), (512 * KIB, "l2"), (8 * MIB, "llc"), (64 * MIB, "memory")]
)
def test_what_fits_a_cache_is_found_there(touch: Touch, size: int, kind: str) -> None:
    lines = range(MIB, MIB + size)
    assert loads(touch, lines) == {"memory": size}
    assert loads(touch, lines) == {kind: size}


@pytest.mark.parametrize(("other", "where"), [(1, "near"), (5, "far")])
def test_a_line_that_two_cpus_hand_to_each_other(touch: Touch, other: int, where: str) -> None:
    touch(other, MIB, True)
    found = Counter(
        touch(cpu, MIB, store) for _ in range(1000) for cpu in (0, other) for store in (False, True)
    )
    assert found == {f"dirty_{where}": 2000, f"upgrade_{where}": 2000}
    stored = Counter(touch(cpu, MIB, True) for _ in range(1000) for cpu in (0, other))
    assert stored == {f"dirty_{where}": 2000}


def test_one_writes_and_all_others_read(touch: Touch) -> None:
    assert touch(0, MIB, True) == "memory"
    read = [touch(cpu, MIB, False) for cpu in range(1, CPUS)]
    # each LLC gets the line with its first reader
    assert read == ["dirty_near", "llc", "llc", "clean_far", "llc", "llc", "llc"]
    assert touch(0, MIB, True) == "upgrade_far"
    assert touch(0, MIB, True) == "l1"
    assert touch(1, MIB, False) == "dirty_near"


def test_a_written_line_that_left_its_cpu_is_in_the_llc(touch: Touch) -> None:
    touch(0, MIB, True)
    loads(touch, range(2 * MIB, 4 * MIB))  # twice what L2 holds
    assert touch(1, MIB, False) == "llc"
    assert touch(4, MIB, False) == "clean_far"


def test_a_device_stores_into_its_llc_and_takes_the_line_from_all(
    touch: Touch, library: ctypes.CDLL
) -> None:
    library.cache_touch_by_device.argtypes = (ctypes.c_int, ctypes.c_uint32, ctypes.c_bool)
    for _ in range(3):
        assert touch(5, MIB, True) in ("memory", "clean_far")  # of a sender in the other socket
        library.cache_touch_by_device(0, MIB, True)
        assert touch(1, MIB, False) == "llc"
        library.cache_touch_by_device(0, MIB, True)
        assert touch(4, MIB, False) == "clean_far"
        library.cache_touch_by_device(0, MIB, True)
    touch(0, MIB, True)
    library.cache_touch_by_device(1, MIB, False)  # what it loads it takes from nobody
    assert [touch(0, MIB, False), touch(1, MIB, False)] == ["l1", "llc"]


def test_more_cpus_than_the_model_has_are_refused(library: ctypes.CDLL) -> None:
    library.cache_init.restype = ctypes.c_bool
    assert [library.cache_init(cpus, 8) for cpus in (0, 32, 33)] == [False, True, False]
