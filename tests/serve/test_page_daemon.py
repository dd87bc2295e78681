# SPDX-License-Identifier: GPL-2.0-or-later
"""The page of a real daemon on the lab NIC, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.applications import CPUS
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING
from tests.labs import Lab
from tests.serve.chromium import chromium
from tests.serve.looked_at import LookedAt
from tests.serve.paged import free_port, listens
from tests.wait import until

__all__: list[str] = []

NAME = "<img src=x one>"  # 15 bytes, as long as a thread's name may be


def with_page(port: int) -> str:
    return EVERYTHING.replace("daemon: {", f"daemon: {{ web: {{ port: {port} }},")


@pytest.fixture(scope="module")
def bed(shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bed, int]]:
    port = free_port()
    with a_bed(shared_lab, tmp_path_factory.mktemp("d"), "bpf", with_page(port)) as made:
        made.start()
        until(lambda: listens(port), "the page is served")
        yield made, port


@pytest.fixture(scope="module")
def page(bed: tuple[Bed, int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LookedAt]:
    with chromium(tmp_path_factory.mktemp("chromium")) as tab:
        yield LookedAt(tab, bed[1])


def test_a_flow_its_place_and_its_move(bed: tuple[Bed, int], page: LookedAt) -> None:
    here, _ = bed
    app = here.apps.tcp()
    here.steered(app)
    app.host.tell(f"name {NAME}")
    app.migrate()
    row = here.row(app, lambda row: row["comm"] == NAME, "has its name")
    page.open()
    flow = f"tcp {row['local']} ← {row['remote']}"
    page.filter(flow.replace("←", ""))

    def shown() -> bool:
        seen = [page.column(each) for each in ("comm", "flow", "app-cpu", "rx-cpu", "rx-queue")]
        cpu, queue = str(app.cpu), str(here.steered(app)["target_queue"])
        return seen == [[f"{NAME} ({app.pid})"], [flow], [cpu], [cpu], [queue]]

    def moves() -> int:
        """Of all mechanisms and verdicts."""
        return sum(map(int, page.texts(".totals td:last-child")))

    until(shown, "the flow is shown where it is")
    before = moves()
    for _ in range(2):
        app.migrate()
        here.steered(app)
        until(shown, "the flow is shown where it has moved")
        until(lambda: page.column("placed") == ["yes"], "it is placed")
        queue = here.steered(app)["target_queue"]

        def hottest(queue: int = queue) -> bool:
            levels = {(cpu, n): page.heat(cpu, n) or 0 for cpu in CPUS for n in range(4)}
            return max(levels, key=lambda at: levels[at]) == (app.cpu, queue)

        until(hottest, "the cell of its CPU and queue is the hottest")
    until(lambda: moves() >= before + 2, "its moves are counted")
    until(lambda: page.count('[data-by="verdict"] rect'), "they are drawn")
    until(lambda: "L" in page.attribute(".locality path", "d"), "there is a line of its reads")
    until(lambda: page.load(app.cpu) is not None, "its CPU has a load")
    assert "immediate" not in page.column("last move")[0]
    assert page.text('[data-of="armed"]') == here.lab.nic.name
    assert (page.text('[data-of="observer"]') or "").startswith("bpf")
    assert page.count("img") == 0
    page.is_readable()
    page.is_by_itself()
    app.end()


def test_off_by_default_and_by_a_reload(bed: tuple[Bed, int]) -> None:
    here, port = bed

    def sockets() -> list[str]:
        """Of the daemon, that listen on TCP."""
        assert here.daemon.process is not None
        own = set()
        for each in Path(f"/proc/{here.daemon.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                own.add(str(each.readlink()))
        rows = [
            line.split()
            for table in ("tcp", "tcp6")
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        ]
        return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in own]

    assert len(sockets()) == 2
    config = here.daemon.config
    with ExitStack() as stack:
        stack.callback(here.daemon.ctl, "reload")
        stack.callback(config.write_text, with_page(port))
        config.write_text(EVERYTHING)
        assert here.daemon.ctl("reload").returncode == 0
        until(lambda: not sockets(), "nobody listens")
    until(lambda: len(sockets()) == 2, "it is served again")
    served = f"served at http://localhost:{port}/"
    assert [each["what"] for each in here.daemon.events("page")] == [served, served]


def test_the_daemon_ends_while_somebody_looks(bed: tuple[Bed, int], page: LookedAt) -> None:
    here, port = bed
    page.open()
    assert here.daemon.end() == 0
    assert not listens(port)
    assert "Traceback" not in here.daemon.said()
    until(lambda: "does not answer" in (page.text("#connection") or ""), "the page says so")
