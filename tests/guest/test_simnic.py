# SPDX-License-Identifier: GPL-2.0-or-later
"""simnic lives through what befalls a NIC, under load: removal and return, writers that meet. The
kernel log is clean afterwards (tests/test_guest.py)."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import pytest

from atfnd.kernel.ethtool.rxnfc import Rxnfc
from atfnd.model import Match
from tests.guest.simlab import FAULTS, NAME, a_simlab, ethtool, iperf3, sh, statistics
from tests.wait import until

SECOND_GUEST = ["--kernel", "newest", "--nic", "every"]
BINDING = Path("/sys/bus/platform/drivers/simnic")
WRITES, TURNS = 600, 200


@pytest.fixture
def load() -> Iterator[None]:
    """TCP both ways, in large frames and small ones, as fast as it goes: until it is unloaded."""
    with ExitStack() as undo, a_simlab(table=512, max_queues=8):
        undo.enter_context(iperf3("-P", 4, "--bidir"))
        until(received, "traffic flows", 60)
        yield


def received() -> bool:
    counts = statistics()
    return sum(counts[f"rx_queue_{queue}_packets"] for queue in range(8)) > 100


def of_port(number: int) -> Match:
    return Match(4, 17, None, 0, None, 0, number, 9)


def at_once(*works: Callable[[], None]) -> None:
    """Run them side by side; the first error of any is raised."""
    with ThreadPoolExecutor(len(works)) as pool:
        for running in [pool.submit(work) for work in works]:
            running.result()


@pytest.mark.usefixtures("load")
def test_no_filter_is_lost_or_doubled_by_writers_that_meet() -> None:
    """Three writers with ranges of their own; what each remembers is what is there at the end."""
    ranges = [range(first, first + 170) for first in (0, 170, 340)]
    expected: list[dict[int, int]] = [{} for _ in ranges]

    def write(mine: range, remembered: dict[int, int]) -> None:
        chance = random.Random(mine.start)
        with closing(Rxnfc(NAME)) as rxnfc:
            for _ in range(WRITES):
                location = chance.choice(mine)
                if location in remembered and chance.random() < 0.4:
                    rxnfc.delete(location)
                    del remembered[location]
                else:
                    queue = chance.randrange(4)
                    assert rxnfc.insert(of_port(1 + location), queue, location) == location
                    remembered[location] = queue

    at_once(*(partial(write, *each) for each in zip(ranges, expected, strict=True)))
    wanted = {location: queue for each in expected for location, queue in each.items()}
    with closing(Rxnfc(NAME)) as rxnfc:
        found = {at: rxnfc.filter(at) for at in rxnfc.locations()[0]}
    assert {at: rule.queue for at, rule in found.items() if rule is not None} == wanted


@pytest.mark.usefixtures("load")
def test_everything_at_once_and_it_goes_and_comes_back() -> None:
    """Moves, resets, channels, rings, RSS and coalescing."""

    def admin() -> None:
        for count in (8, 4, 6, 4):
            ethtool("-L", NAME, "combined", count)
            ethtool("-G", NAME, "rx", 64 * count)
            ethtool("-X", NAME, "equal", 2)
            ethtool("-C", NAME, "rx-usecs", 10 * count)
            (FAULTS / "reset").write_text("phantom")
            ethtool("-X", NAME, "default")
            for state in ("down", "up"):
                sh("ip", "link", "set", NAME, state)

    def writer(number: int) -> None:
        with closing(Rxnfc(NAME)) as rxnfc:
            for turn in range(TURNS):
                at = 5 * number + turn % 5
                try:
                    rxnfc.insert(of_port(1 + at), turn % 4, at)
                except OSError as error:  # no such queue now
                    if error.errno != errno.EINVAL:
                        raise

    for parameter, value in (("duplicates", "0"), ("overwrite", "gap")):
        Path("/sys/module/simnic/parameters", parameter).write_text(value)
    with closing(Rxnfc(NAME)) as rxnfc:
        at_once(admin, lambda: writer(1), lambda: writer(2))
        (FAULTS / "reset").write_text("wipe")
        assert rxnfc.locations()[0] == ()
    for file in ("unbind", "bind"):
        (BINDING / file).write_text("simnic.0")
        assert Path("/sys/class/net", NAME).exists() is (file == "bind")
    sh("ip", "link", "set", NAME, "up")
    until(lambda: "LOWER_UP" in sh("ip", "link", "show", NAME), "the wire is connected")
