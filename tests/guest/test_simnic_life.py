# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic lives through what befalls a NIC, under load: load and unload, names, namespaces,
removal and return, writers that meet. The kernel log is clean afterwards (tests/test_guest.py)."""

from __future__ import annotations

import errno
import random
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.guest.hardware import behave, ethtool, held, packets, send
from tests.guest.rxnfc import FlowSpec, capacity, delete, insert, listed
from tests.guest.simpair import MODULE, fault, open_host, open_peer, simnic, unload
from tests.wait import until

NIC = "sim0"
FAULTS = Path("/sys/kernel/debug/simnic")
BINDING = Path("/sys/bus/platform/drivers/simnic")


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def complaints() -> list[str]:
    log = subprocess.run(["dmesg"], check=True, capture_output=True, text=True).stdout
    return re.findall(r".*(?:WARNING|BUG|Oops|refcount|lockdep|was lost).*", log)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Whatever a test does, the kernel has nothing to say about it."""
    yield
    assert complaints() == []


@contextmanager
def traffic() -> Iterator[None]:
    """TCP both ways over the wire, in large frames and small ones, as fast as it goes."""
    server = subprocess.Popen(["iperf3", "-s"], stdout=subprocess.DEVNULL)
    argv = [
        "ip",
        "netns",
        "exec",
        "peer",
        "iperf3",
        "-c",
        "10.9.0.1",
        "-t",
        "600",
        "-P",
        "4",
        "--bidir",
    ]
    clients: list[subprocess.Popen[bytes]] = []
    try:
        before = sum(packets())

        def started() -> bool:
            if not clients or clients[-1].poll() is not None:  # the server was not there yet
                clients.append(
                    subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
            return sum(packets()) > before + 100

        until(started, "traffic flows", 60)
        yield
    finally:
        for process in (server, *clients):
            process.kill()
            process.wait()


def test_loaded_and_unloaded_again_and_again() -> None:
    for number in range(8):
        with simnic(queues=1 + number, pairs=1 + number % 2):
            assert ethtool("-l", NIC).split()[-1] == str(1 + number)
    for wrong in ("queues=9", "queues=0", "ring=7", "table=0", "max_queues=65", "pairs=9"):
        done = subprocess.run(["insmod", str(MODULE), wrong], capture_output=True, text=True)
        assert (done.returncode, "Invalid parameters" in done.stderr) == (1, True), wrong
    assert subprocess.run(["insmod", str(MODULE), "overwrite=never"]).returncode != 0


def test_unloaded_under_load() -> None:
    for _ in range(3):
        with simnic(table=64), traffic():
            insert(NIC, FlowSpec(None, None, None, 7001), 1)
            ip("netns", "del", "peer")
            assert subprocess.run(["rmmod", "simnic"]).returncode == 0
            assert not Path("/sys/module/simnic").exists()


def test_faults_and_filters_follow_the_name() -> None:
    with simnic():
        location = insert(NIC, FlowSpec(None, None, None, 7001), 1)
        ip("link", "set", NIC, "name", "uplink")
        assert sorted(path.name for path in FAULTS.iterdir()) == ["sim1", "uplink"]
        assert listed("uplink") == [location]
        assert [rule.location for rule in held("uplink")] == [location]
        ip("link", "set", "uplink", "name", NIC)
        fault(NIC, "reset", "wipe")
        assert listed(NIC) == []


def test_a_port_moves_between_namespaces() -> None:
    with simnic(), ExitStack() as undo:
        ip("netns", "add", "elsewhere")
        undo.callback(ip, "netns", "del", "elsewhere")
        insert(NIC, FlowSpec(None, None, None, 7001), 1)
        ip("link", "set", NIC, "netns", "elsewhere")
        assert [rule.location for rule in held()] == [0]
        ip("-n", "elsewhere", "link", "set", NIC, "netns", "1")
        assert listed(NIC) == [0]


def test_a_port_is_removed_and_comes_back() -> None:
    with simnic(), traffic():
        (BINDING / "unbind").write_text("simnic.0")
        assert not Path(f"/sys/class/net/{NIC}").exists()
        (BINDING / "bind").write_text("simnic.0")
        ip("addr", "add", "10.9.0.1/24", "dev", NIC)
        ip("link", "set", NIC, "up")
        with (
            open_peer(socket.AF_INET, socket.SOCK_DGRAM, 5001) as sender,
            open_host(socket.AF_INET, socket.SOCK_DGRAM, 7001) as receiver,
        ):
            insert(NIC, FlowSpec(None, None, None, 7001), 2)
            send(sender, receiver)
            assert [(rule.queue, rule.hits) for rule in held()] == [("2", 50)]


def at_once(*works: Callable[[], None]) -> None:
    """Run them side by side; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, AssertionError, subprocess.CalledProcessError) as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def test_no_filter_is_lost_or_doubled_by_writers_that_meet() -> None:
    """Three writers with ranges of their own; what each remembers is what is there at the end."""
    with simnic(table=512), traffic():
        size, _ = capacity(NIC)
        ranges = [range(first, first + size // 3) for first in (0, size // 3, 2 * (size // 3))]
        expected: list[dict[int, int]] = [{} for _ in ranges]

        def write(mine: range, remembered: dict[int, int]) -> None:
            chance = random.Random(mine.start)
            for _ in range(600):
                location = chance.choice(mine)
                if location in remembered and chance.random() < 0.4:
                    delete(NIC, location)
                    del remembered[location]
                else:
                    queue = chance.randrange(4)
                    match = FlowSpec(None, 1 + location, None, 9)
                    assert insert(NIC, match, queue, location) == location
                    remembered[location] = queue

        def read() -> None:
            for _ in range(20):
                held()

        at_once(*(partial(write, *each) for each in zip(ranges, expected, strict=True)), read)
        wanted = {location: queue for each in expected for location, queue in each.items()}
        assert listed(NIC) == sorted(wanted)
        assert {rule.location: int(rule.queue) for rule in held()} == wanted


def test_everything_at_once() -> None:
    """Moves, resets, channels, rings, RSS, features and coalescing under load."""
    with simnic(table=64, max_queues=8), traffic(), behave(duplicates=0, overwrite="gap"):

        def admin() -> None:
            for count in (8, 4, 6, 4):
                ethtool("-L", NIC, "combined", count)
                ethtool("-G", NIC, "rx", 64 * count)
                ethtool("-X", NIC, "equal", 2)
                ethtool("-C", NIC, "rx-usecs", 10 * count)
                fault(NIC, "reset", "phantom")
                ethtool("-X", NIC, "default")
                for state in ("down", "up"):
                    ip("link", "set", NIC, state)

        def writer(number: int) -> None:
            for turn in range(200):
                match = FlowSpec(None, 100 * number + turn % 5, None, 5201)
                try:
                    insert(NIC, match, turn % 4, 5 * number + turn % 5)
                except OSError as error:
                    # no such queue now
                    if error.errno != errno.EINVAL:
                        raise

        at_once(admin, lambda: writer(1), lambda: writer(2))
        fault(NIC, "reset", "wipe")
        assert (listed(NIC), held()) == ([], [])
        with (
            open_peer(socket.AF_INET, socket.SOCK_DGRAM, 5001) as sender,
            open_host(socket.AF_INET, socket.SOCK_DGRAM, 7001) as receiver,
        ):
            until(lambda: Path(f"/sys/class/net/{NIC}/carrier").read_text() == "1\n", "carrier")
            sender.settimeout(5)
            send(sender, receiver, 1)
    unload()
