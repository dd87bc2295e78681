# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures for every test, its tier (tests/tiers.py), and the time after which none is begun."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Any

import pytest

from atfnd.observe import Price, Qualify
from atfnd.observe.sockets.bpf import BpfObserver
from tests.daemon.failing import Traffic, two_flows
from tests.daemons import OBSERVERS
from tests.labs import Lab, a_lab
from tests.observe.observing import Watch, napis
from tests.tiers import LONG, markers

__all__ = ["flows", "lab", "observer", "own_affinity", "shared_lab", "traffic", "watch"]


if "ATFND_GUEST" not in os.environ:  # seconds to import there, and nobody uses it
    from hypothesis import HealthCheck, settings

    # No test asserts how fast a machine is. The suite draws the same examples in each run.
    slow = [HealthCheck.too_slow]
    settings.register_profile("suite", deadline=None, suppress_health_check=slow, derandomize=True)
    settings.register_profile("soak", deadline=None, suppress_health_check=slow, max_examples=1000)
    settings.load_profile(os.environ.get("ATFND_HYPOTHESIS", "suite"))

UNTIL_S = float(os.environ.get("ATFND_TESTS_UNTIL", "inf"))  # since the epoch
BEGUN = pytest.StashKey[set[str]]()
NOT_BEGUN = pytest.StashKey[set[str]]()


def pytest_configure(config: pytest.Config) -> None:
    # A shell has what it runs in the background ignore SIGINT, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[BEGUN], config.stash[NOT_BEGUN] = set(), set()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its tier; long files come first. UsageError: workers of pytest-xdist
    would not agree on a test's name."""
    for item in items:
        if " object at 0x" in item.nodeid:
            raise pytest.UsageError(f"{item.nodeid}: an address is no id, give it `ids`")
        of_file = markers(item.path)
        if item.get_closest_marker("demand"):  # one test of a file of another tier
            of_file &= {"alone"}
        for marker in of_file:
            item.add_marker(marker)
    order = {stem: place for place, stem in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Begin no other file, and no other guest, once the time is over."""
    file, stash = item.path.name, item.config.stash
    if item.path.stem == "test_guest":
        file = item.name
    if file not in stash[BEGUN] and time.time() > UNTIL_S:
        stash[NOT_BEGUN].add(file)
        return True
    stash[BEGUN].add(file)
    return None


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands on what it has not begun."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        left: set[str] = session.config.stash[NOT_BEGUN]
        output["not begun"] = sorted(left)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """As handed on; a worker that died says nothing."""
    node.config.stash[NOT_BEGUN].update(getattr(node, "workeroutput", {}).get("not begun", ()))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    left: set[str] = terminalreporter.config.stash[NOT_BEGUN]
    if left:
        terminalreporter.section("NOT RUN, for the time was over")
        for each in sorted(left):
            terminalreporter.line(f"not run: {each}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skip is a failure: nothing here may be missing there."""
    del item, call
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
    return report


@pytest.fixture
def lab() -> Iterator[Lab]:
    """A lab of four queues and 4096 filter slots, for this test alone."""
    with a_lab() as made:
        yield made


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[Lab]:
    """The same for the tests of one file, which leave their sockets and filters in it."""
    with a_lab() as made:
        yield made


@pytest.fixture(scope="module")
def flows(shared_lab: Lab) -> Iterator[Traffic]:
    with two_flows(shared_lab) as made:
        yield made


@pytest.fixture
def traffic(flows: Traffic) -> Iterator[Traffic]:
    """Two flows that never stop; the lab is left as it was found, whatever the test did."""
    nic = flows.lab.nic
    cpus = [queue.cpu or 0 for queue in nic.queues()]
    yield flows
    for rule in flows.filters():
        nic.delete(rule.location)
    for queue, cpu in enumerate(cpus):
        nic.set_queue_cpu(queue, cpu)


@pytest.fixture(params=OBSERVERS)
def observer(request: pytest.FixtureRequest) -> str:
    """Once with each."""
    name: str = request.param
    return name


@pytest.fixture
def own_affinity() -> Iterator[None]:
    """The test may pin its own thread."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture
def watch() -> Iterator[Watch]:
    """Makes BPF observers, closed with the test."""
    with ExitStack() as stack:

        def make(
            *labs: Lab,
            dwell_ns: int = 0,
            min_bytes: int = 0,
            min_age_ns: int = 0,
            report_again_ns: int = 3600 * 10**9,
            elsewhere: bool = False,
            price: Price | None = None,
            parts: tuple[Mapping[int, int], ...] = (),
        ) -> BpfObserver:
            qualify = Qualify(
                dwell_ns, min_bytes, min_age_ns, elsewhere=elsewhere, price=price, parts=parts
            )
            observer = stack.enter_context(closing(BpfObserver(qualify, report_again_ns)))
            observer.watch([lab.netns["host"] for lab in labs], napis(*labs))
            return observer

        yield make
