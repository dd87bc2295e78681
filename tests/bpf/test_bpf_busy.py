# SPDX-License-Identifier: GPL-2.0-or-later
"""An object of the C extension whose call runs without the GIL refuses every call of other threads.

The call is caught in the act, however short: its thread shares a CPU with a test thread of
SCHED_FIFO that waits for the GIL. So the test thread runs at once when the call releases the GIL,
and the call stands still until the test thread waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from atfnd.bpf import _bpf
from bench.extension import _bench


class Closable(Protocol):
    def close(self) -> None: ...


def dumper() -> _bpf.SockDiag:
    return _bpf.SockDiag(-1, socket.AF_INET, socket.IPPROTO_TCP, 2)


def listener() -> _bpf.DestroyListener:
    return _bpf.DestroyListener(-1)


def meter() -> _bench.Meter:
    return _bench.Meter(1, os.stat("/proc/self/ns/net").st_ino)


@contextlib.contextmanager
def first_on(cpu: int) -> Iterator[None]:
    """This thread runs on `cpu`, before threads that are not real-time, and asks for no GIL."""
    cpus, interval_s = os.sched_getaffinity(0), sys.getswitchinterval()
    os.sched_setaffinity(0, {cpu})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    sys.setswitchinterval(60)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        os.sched_setaffinity(0, cpus)


@contextlib.contextmanager
def within(call: Callable[[], object]) -> Iterator[None]:
    """Another thread is in `call`, and has released the GIL."""
    cpu = min(os.sched_getaffinity(0))
    ready, go, going, ended = (threading.Semaphore(0) for _ in range(4))
    returned = []

    def body() -> None:
        os.sched_setaffinity(0, {cpu})
        ready.release()
        go.acquire()
        going.release()
        returned.append(call())
        ended.release()

    thread = threading.Thread(target=body)
    thread.start()
    ready.acquire()
    with first_on(cpu):
        go.release()
        going.acquire()
        assert not ended.acquire(blocking=False), "the call was over before we came"
        yield
    thread.join()
    assert len(returned) == 1


@pytest.mark.parametrize(
    ("made", "call"),
    [
        (_bpf.ObserverPrograms, "drain"),
        (_bpf.Birth, "drain"),
        (_bpf.Birth, "close"),
        (_bpf.TransitPrograms, "drain"),
        (_bpf.TransitPrograms, "close"),
        (meter, "flows"),
        (meter, "close"),
        (dumper, "dump"),
        (listener, "drain"),
    ],
)
def test_a_second_thread_is_refused(made: Callable[[], Closable], call: str) -> None:
    tried = made()
    methods = [name for name in dir(tried) if not name.startswith("_")]
    assert "close" in methods
    with within(getattr(tried, call)):
        for name in methods:
            with pytest.raises(RuntimeError, match="busy in another thread"):
                getattr(tried, name)()
    tried.close()


def test_it_is_free_after_a_call_and_after_one_that_failed() -> None:
    birth = _bpf.Birth()
    with open("/dev/null") as null, pytest.raises(OSError, match="attach"):
        birth.start(null.fileno())
    assert birth.drain() == b""
    birth.close()
    with pytest.raises(ValueError, match="closed"):
        birth.drain()
