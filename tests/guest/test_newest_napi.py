# SPDX-License-Identifier: GPL-2.0-or-later
"""What the newest kernel can set of a queue and 6.12 cannot: settings of one NAPI, a thread that
polls without a pause, RSS by netlink.

Documentation/netlink/specs/netdev.yaml and ethtool.yaml, Linux 7.3.
"""

from __future__ import annotations

import errno
import os
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from atfnd.kernel.netlink.requests import GenericFamily, attribute, number
from atfnd.kernel.system.procfs import read, stat_fields
from atfnd.model import Action
from atfnd.model.reason import Code
from atfnd.move.loan import BORROWED, GIVEN_BACK
from atfnd.nic.ethtool.nic import EthtoolNic
from atfnd.program import lending, setting
from atfnd.program.journals.undo_journal import UndoJournal
from tests.guest.fetch import KERNELS
from tests.guest.hardware import statistics
from tests.guest.settings import table
from tests.guest.simlab import NAME, sh
from tests.guest.wired import Wired, simnic
from tests.wait import until

GUEST = ["--kernel", "newest", "--nic", "every"]
QUEUES = 4
NAPI_GET, NAPI_SET = 11, 14
ID, PID, DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, IRQ_SUSPEND_TIMEOUT, THREADED = 2, 4, 5, 6, 7, 8
FIELDS = (DEFER_HARD_IRQS, GRO_FLUSH_TIMEOUT, IRQ_SUSPEND_TIMEOUT, THREADED)
DISABLED, ENABLED, BUSY_POLL = 0, 1, 2
CHANGED = {DEFER_HARD_IRQS: 3, GRO_FLUSH_TIMEOUT: 20_000, IRQ_SUSPEND_TIMEOUT: 20_000_000}
RSS_SET, RSS_HEADER, RSS_INDIR, HEADER_NAME, NESTED = 48, 1, 4, 2, 0x8000

USER_TICKS, SYSTEM_TICKS = 11, 12  # of /proc/PID/stat, after the name
A_WHILE_TICKS = 10

Made = tuple[Wired, EthtoolNic]


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    with simnic(queues=QUEUES) as wired:
        yield wired


@pytest.fixture
def napis(made: Made) -> Iterator[list[int]]:
    """NAPI ids by queue. Afterwards each has the settings that it had."""
    _, nic = made
    found = [queue.napi_id for queue in nic.queues()]
    ids = [napi for napi in found if napi is not None]
    assert len(set(ids)) == QUEUES
    before = {napi: fields(napi) for napi in ids}
    yield ids
    for napi, values in before.items():
        napi_set(napi, values)
        assert fields(napi) == values


def napi_get(napi: int) -> dict[int, int | None]:
    with closing(GenericFamily("netdev")) as family:
        [answer] = family.request(NAPI_GET, attribute(ID, struct.pack("=I", napi)))
    return {kind: number(value) for kind, value in answer.items()}


def napi_set(napi: int, values: dict[int, int]) -> None:
    request = {ID: napi, **values}
    with closing(GenericFamily("netdev")) as family:
        family.request(
            NAPI_SET, b"".join(attribute(k, struct.pack("=I", v)) for k, v in request.items())
        )


def fields(napi: int) -> dict[int, int]:
    found = napi_get(napi)
    return {field: value for field in FIELDS if (value := found.get(field)) is not None}


def ran(thread: int) -> int:
    """Ticks that it has had a CPU."""
    _, rest = stat_fields(read(f"/proc/{thread}/stat"))
    return int(rest[USER_TICKS]) + int(rest[SYSTEM_TICKS])


def until_it_ran(thread: int, what: str) -> None:
    before = ran(thread)
    until(lambda: ran(thread) > before + A_WHILE_TICKS, what)


def irqs(queue: int) -> int:
    return statistics()[f"rx_queue_{queue}_irqs"]


@contextmanager
def traffic(port: Wired) -> Iterator[None]:
    """From the far end, as fast as it goes."""
    over = threading.Event()

    def flood() -> None:
        while not over.is_set():
            port.far.send(bytes(64))

    sender = threading.Thread(target=flood)
    sender.start()
    try:
        yield
    finally:
        over.set()
        sender.join()
        port.near.setblocking(False)
        with suppress(BlockingIOError):  # none is left that the next test would take for its own
            while port.near.recv(128):
                pass


def test_this_is_the_newest_kernel() -> None:
    assert KERNELS["newest"].release.fullmatch(os.uname().release)


def test_each_napi_has_settings_of_its_own(napis: list[int]) -> None:
    first, *others = napis
    before = {napi: fields(napi) for napi in others}
    assert set(fields(first)) == set(FIELDS)
    napi_set(first, CHANGED | {THREADED: ENABLED})
    assert fields(first) == CHANGED | {THREADED: ENABLED}
    assert {napi: fields(napi) for napi in others} == before
    napi_set(first, {THREADED: DISABLED})
    assert fields(first) == CHANGED | {THREADED: DISABLED}


def test_a_queue_keeps_its_napi_and_its_settings_while_it_is_down(
    made: Made, napis: list[int]
) -> None:
    """simnic registers them as persistent, as most drivers do (netif_napi_add_config)."""
    port, nic = made
    napi_set(napis[1], CHANGED)
    sh("ip", "link", "set", NAME, "down")
    sh("ip", "link", "set", NAME, "up")
    until(port.napi_id, "packets come again")
    assert [queue.napi_id for queue in nic.queues()] == napis
    assert fields(napis[1]) == CHANGED | {THREADED: DISABLED}


def test_a_thread_polls_without_a_pause_until_it_is_told_to_end(
    made: Made, napis: list[int]
) -> None:
    """Told under traffic, too: the ring is never empty then."""
    port, _ = made
    napi = port.napi_id()
    queue = napis.index(napi)
    for _ in range(3):
        napi_set(napi, {THREADED: BUSY_POLL})
        assert fields(napi)[THREADED] == BUSY_POLL
        thread = napi_get(napi)[PID]
        assert thread is not None
        assert port.napi_id() == napi  # the first packet's interrupt starts the thread
        before = irqs(queue)
        until_it_ran(thread, "it polls though nothing comes")
        assert port.napi_id() == napi
        assert irqs(queue) == before
        with traffic(port):
            napi_set(napi, {THREADED: DISABLED})
        assert fields(napi)[THREADED] == DISABLED
        before = irqs(queue)
        assert port.napi_id() == napi
        assert irqs(queue) > before


def test_a_policys_thread_outlives_the_loan_that_it_began_in(
    made: Made, napis: list[int], tmp_path: Path
) -> None:
    """It is one switch, with two names."""
    _, nic = made
    nic.probe()
    lent = replace(
        Action.of_setting(NAME, "threaded:1", BORROWED, Code.KERNEL("a move waits")), loan=True
    )
    asked = Action.of_setting(
        NAME, "napi-thread:1", str(BUSY_POLL), Code.KERNEL("a policy asks for it")
    )
    with closing(UndoJournal(tmp_path / "originals.journal")) as journal:
        assert lending.apply(nic, journal, lent).errno == 0
        assert (fields(napis[1])[THREADED], nic.queues()[1].borrowed) == (ENABLED, True)
        assert nic.setting("napi-thread:1") == "0"
        assert lending.keep(nic, journal, asked).errno == 0
        assert not nic.queues()[1].borrowed
        assert lending.apply(nic, journal, replace(lent, value=GIVEN_BACK)).errno == 0
        assert fields(napis[1])[THREADED] == BUSY_POLL
        assert [each.errno for each in setting.undo(nic, journal)] == [0]
        assert (fields(napis[1])[THREADED], journal.manual(NAME)) == (DISABLED, frozenset())


def test_a_borrowed_thread_that_another_program_has_poll_without_end_is_its(
    made: Made, napis: list[int], tmp_path: Path
) -> None:
    _, nic = made
    nic.probe()
    lent = replace(
        Action.of_setting(NAME, "threaded:1", BORROWED, Code.KERNEL("a move waits")), loan=True
    )
    with closing(UndoJournal(tmp_path / "originals.journal")) as journal:
        assert lending.apply(nic, journal, lent).errno == 0
        napi_set(napis[1], {THREADED: BUSY_POLL})
        done = lending.apply(nic, journal, replace(lent, value=GIVEN_BACK))
        assert (done.errno, journal.held(NAME)) == (errno.ESTALE, {})
        assert (fields(napis[1])[THREADED], nic.queues()[1].borrowed) == (BUSY_POLL, False)


def test_rss_by_netlink(made: Made, napis: list[int]) -> None:
    port, _ = made
    before = table()
    name = attribute(HEADER_NAME, NAME.encode() + b"\0")
    with closing(GenericFamily("ethtool")) as family:
        for queue in (2, 3):
            entries = struct.pack("=I", queue) * len(before)
            header = attribute(RSS_HEADER | NESTED, name)
            family.request(RSS_SET, header + attribute(RSS_INDIR, entries))
            assert table() == [queue] * len(before)
            assert port.napi_id() == napis[queue]
    sh("ethtool", "-X", NAME, "default")
    assert table() == before
