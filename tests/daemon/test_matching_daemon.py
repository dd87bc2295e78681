# SPDX-License-Identifier: GPL-2.0-or-later
"""Which rule real flows fall under, by what the kernel tells of them: one daemon, a flow for each
kind of match. Before each rule stands one that differs in that match alone, and does not hold."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from atfnd.lab.wiring import HOST4, PEER4
from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import OBSERVERS, policy
from tests.labs import Lab
from tests.observe.groups import GROUP, UNIT, a_group

# The match that holds, and one that does not. Every rule asks for a port, too: each kind has its
# own, as ports stay in TIME-WAIT.
MATCHES = {
    "protocol": ("protocol: tcp", "protocol: [udp, sctp]"),
    "local": (f"local: {HOST4}/32", f"local: {PEER4}/32"),
    "remote": (f"remote: {PEER4}/32", f"remote: {HOST4}/32"),
    "process": ('process: "perl|python*"', "process: perl"),
    "command": ('command: "*tests.talker echo tcp *"', "command: tests.talker"),
    "user": ("user: root", "user: [nobody, 4294967294]"),
    "interface": ('interface: "lab:*|sim*"', 'interface: "eth*|lo"'),
    "accepted": ("direction: accepted", "direction: connected"),
    "bytes": ("min_bytes: 64KiB", "min_bytes: 1TiB"),
    "age": ("min_age: 200ms", "min_age: 1h"),
    "rate": ("min_rate: 1Mbit", "min_rate: 1Tbit"),
    "cgroup": (f"cgroup: /{GROUP}/*", f"cgroup: /{GROUP}"),
    "unit": (f"unit: {UNIT}", "unit: other.service"),
    "connected": ("direction: connected", "direction: accepted"),
    "before": ("direction: accepted", "direction: connected"),
}
KINDS = [kind for kind in MATCHES if kind not in ("cgroup", "unit", "connected", "before")]


def port(first: int, kind: str) -> int:
    """Of the ports from `first` on, that of a kind."""
    return first + list(MATCHES).index(kind)


def rules(first: int) -> str:
    """Both of each, in this order, as `no-KIND` and `yes-KIND`."""
    return "\n".join(
        f"  - {{ name: {word}-{kind}, match: {{ ports: {port(first, kind)}, {match} }}, "
        f"placement: {{ near: core }}, full_core: stay, dwell: 20ms, order: immediate }}"
        for kind, (holds, fails) in MATCHES.items()
        for word, match in (("no", fails), ("yes", holds))
    )


def under(bed: Bed, app: Application, rule: str) -> None:
    row = bed.row(app, lambda row: row["rule"] == rule, f"falls under `{rule}`")
    assert row["pid"] == app.pid


def first(observer: str) -> int:
    """Of the ports."""
    return 7000 + 100 * OBSERVERS.index(observer)


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("daemon")
    with a_bed(shared_lab, folder, request.param, policy(rules(first(request.param)))) as made:
        made.start()
        yield made


@pytest.mark.parametrize("kind", KINDS)
def test_by_what_is_asked(bed: Bed, kind: str) -> None:
    app = bed.apps.tcp(port=port(first(bed.observer), kind))
    under(bed, app, f"yes-{kind}")
    bed.steered(app)
    app.end()


@pytest.mark.parametrize("kind", ["cgroup", "unit"])
def test_by_its_control_group(bed: Bed, kind: str) -> None:
    with a_group() as move:
        move(f"{GROUP}/{UNIT}")
        app = bed.apps.tcp(port=port(first(bed.observer), kind))
        move(None)
        try:
            under(bed, app, f"yes-{kind}")
        finally:
            app.end()


def test_a_connection_from_here(bed: Bed) -> None:
    """Only BPF sees who asked for it; where nobody listens, the other observer does not know."""
    app = bed.apps.tcp_connected(port=port(first(bed.observer), "connected"))
    under(bed, app, "yes-connected" if bed.observer == "bpf" else "everything")
    app.end()


def test_a_connection_from_before(bed: Bed) -> None:
    """Of one that was established before the daemon ran, the listener tells."""
    bed.daemon.end()
    app = bed.apps.tcp(port=port(first(bed.observer), "before"))
    bed.start()
    under(bed, app, "yes-before")
    app.end()
