# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench forward-simnic`, tiny: what is forwarded by softirqs is counted, in the modes that its
rows say. How much that is, is not asked for here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.kernel.system.netns import path_of
from bench import forward_report, forward_simnic, markdown, plot
from bench.children import on_one_cpu
from bench.forward_load import Run
from bench.forward_simnic import PLACEMENTS, SIMNIC, Subject
from bench.forwarder import built
from bench.pollers import thread_use
from bench.polling import Napis
from bench.sim_forwarder import BUDGET, SimForwarder, budget, by_threads, sim_forwarder
from tests.guest.hardware import interrupts

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")
DEFAULT_AFFINITY = Path("/proc/irq/default_smp_affinity")
MODES = {"0": (0, 0, 0), "I": (0, 1, 2), "II": (0, 2, 1)}  # CPUs of Rx1, Rx2, Tx
FRAMES_PPS, FRAMES_S = 2000, 0.5
TINY = SIMNIC._replace(shares=(0.2, 1.0), window_s=0.2, least_pps=3000, most_pps=4000)
ASKED = [
    Subject("II", "NAPI(300)"),
    Subject("II", "NAPI(2)"),
    Subject("I", "DE"),
    Subject("rps", "NAPI(300)"),
    Subject("default", "NAPI(300)"),
]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("generator"))


@pytest.fixture
def bed(program: Path) -> Iterator[SimForwarder]:
    with sim_forwarder(program) as made, on_one_cpu(made.generators_cpu):
        yield made


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    before = BUDGET.read_text(), DEFAULT_AFFINITY.read_text()
    measured = json.loads(json.dumps(forward_simnic.measure(1, TINY, ASKED)))
    assert (BUDGET.read_text(), DEFAULT_AFFINITY.read_text()) == before
    assert not Path("/sys/module/simnic").exists()
    assert not list(Path("/run/netns").glob("bench*"))
    return [Run(*each) for each in measured]


def counts(of: str) -> list[int]:
    """Of the interrupt, by CPU."""
    return interrupts(f"{of}-TxRx-0")[1]


def test_every_row_has_frames_and_each_of_them_is_accounted_for(runs: list[Run]) -> None:
    assert [(run.sizes, run.subject, run.load) for run in runs] == [
        (sizes, f"{placement}, {reception}", load)
        for placement, receptions in (
            ("II", ("NAPI(300)", "NAPI(2)")), ("I", ("DE",)),
            ("rps", ("NAPI(300)",)), ("default", ("NAPI(300)",)),
        )
        for sizes in ("64", "mix")
        for reception in receptions
        for load in (0.2, 1.0)
    ]  # fmt: skip
    for run in runs:
        assert 0 < run.out_pps <= run.offered_pps
        assert run.unexplained == 0, run
        assert 0 < run.p50_ns <= run.p99_ns
        assert run.rx_wakes_per_s > 0
        if run.placement in MODES:
            assert run.cpus == ", ".join(map(str, MODES[run.placement]))
        assert run.rx_idle is not None
        assert run.tx_idle is not None
        assert min(run.rx_idle, run.tx_idle) >= 0


def test_they_are_reported(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "curves", lambda *_, **__: None)  # drawn on the host
    sections = list[markdown.Section]()
    monkeypatch.setattr(forward_report, "write_sections", lambda _, given: sections.__iadd__(given))
    report = forward_report.report(runs, TINY)
    assert ("64: capacity", "rps / II") in {(row.what, row.contender) for row in report.rows}
    assert any("squeezes, NAPI(2) / NAPI(300)" in target.what for target in report.targets)
    titles = {section.title for section in sections}
    assert "64 B, Fig. 8: idle of the CPUs of Rx | Tx (%)" in titles
    assert not any("waits" in title for title in titles)  # QEMU without KVM reports none


@pytest.mark.parametrize(("mode", "where"), MODES.items())
def test_interrupts_go_where_the_mode_says(
    bed: SimForwarder, mode: str, where: tuple[int, int, int]
) -> None:
    with PLACEMENTS[mode](bed):
        before = {name: counts(name) for name in bed.irqs}
        bed.used(FRAMES_PPS, FRAMES_S)
        for name, cpu in zip(("e0", "e1", "s2"), where, strict=True):
            grown = [now - was for now, was in zip(counts(name), before[name], strict=True)]
            assert grown[cpu] == sum(grown) > 0, (name, grown)


def test_nothing_of_the_host_is_on_the_generators_cpu(bed: SimForwarder) -> None:
    assert bed.generators_cpu == 3
    assert set(bed.delivered_on().values()) <= {0, 1, 2}


def test_the_budget_is_in_force_and_put_back(bed: SimForwarder) -> None:
    before = BUDGET.read_text()
    with PLACEMENTS["0"](bed):
        for packets in (300, 2):
            with budget(packets):
                assert BUDGET.read_text() == f"{packets}\n"
                began = bed.read().squeezes
                bed.used(FRAMES_PPS, FRAMES_S)
                ended = bed.read().squeezes
            assert began is not None
            assert ended is not None
            if packets == 2:
                assert ended > began  # a poll that finds two frames ends the pass
    assert BUDGET.read_text() == before


def test_threads_poll_while_they_are_asked_to(bed: SimForwarder) -> None:
    def used_ns() -> list[int]:
        before = ran_ns()
        bed.used(FRAMES_PPS, FRAMES_S)
        return [now - was for now, was in zip(ran_ns(), before, strict=True)]

    def ran_ns() -> list[int]:
        found = [
            Napis.of(path_of(bed.host.netns_of(name)), port.ifindex).threads[0]
            for name, port in bed.ports.items()
        ]
        return [thread_use(pid).ran_ns for pid in found]

    with PLACEMENTS["II"](bed):
        with by_threads(bed):
            assert min(used_ns()) > 0
        assert {port.read("threaded") for port in bed.ports.values()} == {"0"}
        assert max(used_ns()) == 0
