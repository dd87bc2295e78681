# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon in a namespace that forwards: channels come to the CPUs that a rule asks for, in
order, and are put back."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemon.router import OUT, QUEUES, Flow, Router, a_router
from tests.daemons import ATFND, Daemon, Row
from tests.wait import until

__all__: list[str] = []

INS = ("f0", "f1")
PPS = 2000
CPUS = [0, 1]

pytestmark = pytest.mark.usefixtures("own_affinity")


def policy(placement: str, armed: str = "*", more: str = "") -> str:
    return f"""\
version: 1
interfaces:
  - match: {{ name: "{armed}" }}
    armed: true
forwarding:
  - name: gateway
    match: {{ in: "f*", out: "{OUT}" }}
    placement: {placement}
    {more}
"""


class Running:
    """A daemon that serves every interface of a router."""

    def __init__(self, router: Router, folder: Path, config: str) -> None:
        self.router, self.daemon = router, Daemon(folder, config)
        nics = (word for nic in router.nics for word in ("--nic", nic))
        self.daemon.start(*nics, wrapped=router.wrapped())

    def cpus(self) -> dict[str, list[int | None]]:
        return {nic: self.router.cpus(nic) for nic in self.router.nics}

    def at(self, cpus: Sequence[int | None], *nics: str) -> bool:
        return all(self.router.cpus(nic) == cpus for nic in nics)

    def pairs(self) -> list[Row]:
        found: list[Row] = self.daemon.get("/v1/pairs?seconds=1")["pairs"]
        return [row for row in found if row["rule"] is not None]


@contextmanager
def running(router: Router, folder: Path, config: str) -> Iterator[Running]:
    made = Running(router, folder, config)
    try:
        yield made
    finally:
        made.daemon.reap()


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    with a_router(tmp_path, len(INS)) as made:
        yield made


def restored(made: Running) -> None:
    """By `atfnd restore` after the daemon has ended."""
    words = (ATFND, "restore", "--run-dir", str(made.daemon.run_dir))
    subprocess.run([*made.router.wrapped(), *words], check=True, capture_output=True)


def send(router: Router) -> list[Flow]:
    """Each interface receives by one queue, another one each."""
    return [router.forward(nic, queue, PPS) for queue, nic in enumerate(INS)]


def test_channels_come_together_in_order_and_go_back(router: Router, tmp_path: Path) -> None:
    """What goes out is not armed at first: the channels that carry the packets have to move."""
    for nic in INS:
        router.put(nic, [1, 0])
    router.put(OUT, CPUS)
    flows = send(router)
    with running(router, tmp_path, policy("{ pair: core }", "f*")) as made:
        until(lambda: made.at(CPUS, *INS), "channels of one number are on one CPU", 60)
        assert {row["rule"] for row in made.pairs()} == {"gateway"}
        assert router.xps(OUT) == ["", ""]
        made.daemon.order("arm", OUT)
        for flow in flows:
            flow.stop()
        assert all(flow.arrived() > 0 for flow in flows)
        assert [flow.late() for flow in flows] == [0, 0]
        until(lambda: router.xps(OUT) == ["0", "1"], "each CPU has its TX queue", 60)
        moves = made.daemon.events("queue-cpu")
        assert {(row["nic"], row["rule"]) for row in moves} == {(nic, "gateway") for nic in INS}
        assert made.daemon.end() == 0
        restored(made)
    assert made.cpus() == {"f0": [1, 0], "f1": [1, 0], OUT: CPUS}
    assert all(router.xps(nic) == ["", ""] for nic in router.nics)


def test_atfnctl_restores_a_running_daemon(router: Router, tmp_path: Path) -> None:
    router.put(OUT, [1, 0])
    for nic in INS:
        router.put(nic, CPUS)
    flows = send(router)
    before = {OUT: [1, 0], **dict.fromkeys(INS, CPUS)}
    with running(router, tmp_path, policy("{ pair: core }", more="order: bounded")) as made:
        until(lambda: made.at(router.cpus(OUT), *INS) and any(router.xps(OUT)), "placed", 60)
        done = made.daemon.ctl("restore")
        assert done.returncode == 0, done.stderr
        assert made.cpus() == before
        assert all(router.xps(nic) == ["", ""] for nic in router.nics)
        assert made.pairs() != []  # it has looked since
        assert made.cpus() == before
    for flow in flows:
        flow.stop()


@pytest.mark.parametrize("mode", ["I", "II"])
def test_the_modes_of_the_second_paper(router: Router, tmp_path: Path, mode: str) -> None:
    """On two CPUs, which stand for its packages."""
    for nic, cpus in (("f0", [0, 0]), ("f1", [1, 1]), (OUT, [1, 1])):
        router.put(nic, cpus)
    flows = [router.forward(nic, 0, pps) for nic, pps in (("f0", 2 * PPS), ("f1", PPS))]

    def placed() -> bool:
        f0, f1, out = ({*router.cpus(nic)} for nic in (*INS, OUT))
        if len(f0) + len(f1) + len(out) != 3:
            return False
        return f0 == f1 != out if mode == "I" else f0 == out != f1

    with running(router, tmp_path, policy(f"{{ mode: {mode} }}")) as made:
        until(placed, f"they are as in mode {mode}", 60)
        assert all(f"mode {mode}: " in row["why"] or "waits" in row["why"] for row in made.pairs())
    for flow in flows:
        flow.stop()
        assert flow.late() == 0


def test_what_another_program_moves_is_his_and_the_others_join(
    router: Router, tmp_path: Path
) -> None:
    router.put(OUT, [1, 0])
    for nic in INS:
        router.put(nic, CPUS)
    flows = send(router)
    with running(router, tmp_path, policy("{ pair: core }", OUT)) as made:
        until(lambda: made.at(CPUS, OUT), "channels of one number are on one CPU", 60)
        theirs = CPUS[::-1]
        router.put(OUT, theirs)

        def manual() -> set[str]:
            (nic,) = (row for row in made.daemon.get("/v1/nics")["nics"] if row["nic"] == OUT)
            return {*nic["manual"]}

        until(lambda: len(manual()) == QUEUES, "it is noticed", 60)
        for nic in INS:
            made.daemon.order("arm", nic)
        until(lambda: made.at(theirs, *INS), "the others join", 60)
        assert router.cpus(OUT) == theirs
    for flow in flows:
        flow.stop()
