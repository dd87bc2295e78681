# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule real flows fall under, by what the kernel tells of them: one daemon, a flow for each
kind of match. Before each rule stands one that differs in that match alone, and does not hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from atfnd.kernel.cgroup import open_root
from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS, policy
from tests.labs import Lab

GROUP = f"atfnd-test-{os.getpid()}.slice"
UNIT = "echo.service"

# port: the match that holds, and one that does not
MATCHES = {
    7001: ('command: "*tests.talker echo tcp *"', "command: tests.talker"),
    7002: ("user: root", "user: [nobody, 4294967294]"),
    7003: (f"cgroup: /{GROUP}/*", f"cgroup: /{GROUP}"),
    7004: (f"unit: {UNIT}", "unit: other.service"),
    7005: ('interface: "lab:*"', 'interface: "eth*|lo"'),
    7006: ("direction: accepted", "direction: connected"),
    7007: ("direction: connected", "direction: accepted"),
    7008: ("min_rate: 1Mbit", "min_rate: 1Tbit"),
}


def rules() -> str:
    """Both of each, in this order, as `no-PORT` and `yes-PORT`."""
    return "\n".join(
        f"  - {{ name: {word}-{port}, match: {{ ports: {port}, {match} }}, "
        f"placement: {{ near: core }}, dwell: 20ms, order: immediate }}"
        for port, (holds, fails) in MATCHES.items()
        for word, match in (("no", fails), ("yes", holds))
    )


@contextmanager
def a_group() -> Iterator[Callable[[int], None]]:
    """Moves a process into `/GROUP/UNIT`; at its end it goes back to the root."""
    root = open_root()
    moved = []

    def move(pid: int, group: str = f"{GROUP}/{UNIT}") -> None:
        procs = os.open(f"{group}/cgroup.procs", os.O_WRONLY, dir_fd=root)
        try:
            os.write(procs, f"{pid}\n".encode())
        finally:
            os.close(procs)
        moved.append(pid)

    try:
        for each in (GROUP, f"{GROUP}/{UNIT}"):
            os.mkdir(each, dir_fd=root)
        yield move
    finally:
        for pid in set(moved):
            move(pid, ".")
        for each in (f"{GROUP}/{UNIT}", GROUP):
            os.rmdir(each, dir_fd=root)
        os.close(root)


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("daemon")
    with a_bed(shared_lab, folder, request.param, policy(rules())) as made:
        made.start()
        yield made


def under(bed: Bed, app: Application, rule: str) -> None:
    row = bed.row(app, lambda row: row["policy"] == rule, f"falls under `{rule}`")
    assert row["pid"] == app.pid


@pytest.mark.parametrize("port", [7001, 7002, 7005, 7006, 7008])
def test_by_what_is_asked(bed: Bed, port: int) -> None:
    app = bed.apps.tcp(port=port)
    under(bed, app, f"yes-{port}")
    bed.steered(app)
    app.end()


@pytest.mark.parametrize("port", [7003, 7004])
def test_by_its_control_group(bed: Bed, port: int) -> None:
    with a_group() as move:
        app = bed.apps.tcp(port=port)
        app.pause()
        move(app.pid)
        app.resume()
        under(bed, app, f"yes-{port}")
        app.end()


def test_a_connection_from_here(bed: Bed) -> None:
    """Only BPF sees who asked for it; where nobody listens, the other observer does not know."""
    app = bed.apps.tcp_connected(port=7007)
    under(bed, app, "yes-7007" if bed.observer == "bpf" else "everything")
    app.end()


def test_a_connection_from_before(bed: Bed) -> None:
    """Of one that was established before the daemon ran, the listener tells."""
    bed.daemon.end()
    app = bed.apps.tcp(port=7006)
    bed.start()
    under(bed, app, "yes-7006")
    app.end()
