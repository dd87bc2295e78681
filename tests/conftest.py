# SPDX-License-Identifier: GPL-2.0-or-later
"""Fixtures for every test."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing

import pytest
from hypothesis import settings

from atfnd.observe import Qualify
from atfnd.observe.bpf import BpfObserver
from tests.daemons import OBSERVERS
from tests.failing import Traffic, two_flows
from tests.labs import Lab, a_lab
from tests.observing import Watch

__all__ = ["flows", "lab", "observer", "own_affinity", "shared_lab", "traffic", "watch"]


settings.register_profile("atfnd", deadline=None)  # no test asserts how fast a machine is
settings.load_profile("atfnd")


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
    for rule in flows.rules():
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
            retell_ns: int = 3600 * 10**9,
            elsewhere: bool = False,
        ) -> BpfObserver:
            qualify = Qualify(dwell_ns, min_bytes, min_age_ns, elsewhere=elsewhere)
            observer = stack.enter_context(closing(BpfObserver(qualify, retell_ns)))
            napi_ids = [queue.napi_id for lab in labs for queue in lab.nic.queues()]
            observer.watch(
                [lab.netns["host"] for lab in labs], [each for each in napi_ids if each is not None]
            )
            return observer

        yield make
