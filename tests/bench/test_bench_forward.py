# SPDX-License-Identifier: GPL-2.0-or-later
"""`bench forward`: frames are forwarded, counted and timed, and what is said of them is so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import forward, forward_report, plot
from bench import report as report_module
from bench.forward import Subject
from bench.forward_load import Load, Run
from bench.forwarder import RECEIVERS, SENDER, Frames, built, offered, sent
from bench.polling import INTERRUPT, deferred, polled_as
from bench.veth_forwarder import VethForwarder, veth_forwarder
from tests.wait import until

__all__: list[str] = []

pytestmark = pytest.mark.usefixtures("own_affinity")
SLOTS = 512


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plot, "FOLDER", tmp_path)
    monkeypatch.setattr(report_module, "FOLDER", tmp_path)


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[VethForwarder]:
    with veth_forwarder(built(tmp_path)) as made:
        yield made


def test_what_is_offered_at_both_ports_arrives_and_each_thread_has_polled_its_part(
    bed: VethForwarder,
) -> None:
    first, second = sorted(os.sched_getaffinity(0))[:2]
    bed.place({"e0": [first], "e1": [first], SENDER: [second]})
    threads = {name: bed.thread(name) for name in (*RECEIVERS, SENDER)}
    before, dropped = bed.host.arrived(), bed.dropped()
    with offered(bed.host, 4000, 0.25, "mix", second) as generator:
        given = sent(generator, 30)
    expected = given.sent - (bed.dropped() - dropped)
    until(lambda: bed.host.arrived().since(before).frames >= expected, "all have arrived")
    # The kernel may skip our programs for some polls while others attach theirs.
    until(
        lambda: all(bed.pollers.totals(pid).packets > expected / 4 for pid in threads.values()),
        "each thread has polled its part",
    )
    received = bed.read().received
    found = bed.host.arrived().since(before)
    assert found.frames == expected > 0
    assert received <= given.sent
    assert min(found.of_ports) > expected / 4
    # 7 of 64 B, 4 of 594 and 1 of 1518 are 361.8 on average, with 4 B of checksum that no veth has
    assert found.bytes / found.frames == pytest.approx(361.8 - 4, rel=0.05)
    assert 0 < (found.delay_ns(0.5) or 0) <= (found.delay_ns(0.99) or 0)


def test_a_mode_of_reception_is_set_and_taken_back(bed: VethForwarder) -> None:
    napis = [bed.napis[name] for name in RECEIVERS]
    before = [each.read() for each in napis]
    with polled_as(deferred(50), napis):
        for each in napis:
            assert each.read().gro_flush_timeout_ns == 50_000
            assert each.read().defer_hard_irqs == 100
        assert bed.napis[SENDER].read().gro_flush_timeout_ns == 0
    assert [each.read() for each in napis] == before


def test_every_frame_is_accounted_for_in_each_mode() -> None:
    asked = [Subject("II", INTERRUPT), Subject("II", deferred(50)), Subject("rps", INTERRUPT)]
    runs = forward.measure(1, Load((0.1, 0.5), 0.1), asked)
    assert {(run.sizes, run.subject, run.load) for run in runs} == {
        (sizes, subject, load)
        for sizes in ("64", "mix")
        for subject in ("II, DE", "II, deferred 50 us", "rps, DE")
        for load in (0.1, 0.5)
    }
    for run in runs:
        assert run.unexplained == 0
        assert 0 < run.out_pps <= run.offered_pps
        assert 0 < run.p50_ns <= run.p99_ns
        assert run.rx_share > 0
    report = forward_report.report(runs)
    assert ("64: capacity", "rps / II") in {(row.what, row.contender) for row in report.rows}


def test_a_delay_is_the_middle_of_its_slot() -> None:
    def of(**counts: int) -> Frames:
        delays = [0] * SLOTS
        for slot, count in counts.items():
            delays[int(slot.removeprefix("at"))] = count
        return Frames((0, 0), 0, tuple(delays))

    assert of(at5=1).delay_ns(0.5) == 5
    assert of(at8=1).delay_ns(0.5) == 8.5  # 8 is the first of a width of 1
    assert of(at16=1).delay_ns(0.5) == 17  # 16 and 17
    # 1000 has its highest bit at 9, and the next three are 7: (9 - 2) * 8 + 7
    assert of(at63=1).delay_ns(0.5) == 992
    assert of(at5=9, at63=1).delay_ns(0.5) == 5
    assert of(at5=9, at63=1).delay_ns(0.99) == 992
    assert of().delay_ns(0.5) is None


def run(placement: str, load: float, sizes: str = "64", **values: Any) -> Run:
    usual = Run(
        sizes, placement, "DE", load, 500e3, 500e3 * load, 500e3 * load, 30e6 * load, 0.0, 0.0,
        0.0, 20e3, 50e3, 10e3, 5e3, 1.0, rx_share=0.4, tx_share=0.2, ring_waits=0.0,
    )  # fmt: skip
    return usual._replace(**values)


def kept(runs: list[Run]) -> dict[str, bool]:
    return {target.what: target.met for target in forward_report.report(runs).targets}


def test_the_acceptance_lines_are_what_they_say() -> None:
    calm = [run(name, load) for name in ("0", "I", "II") for load in (0.1, 0.5)]
    end: dict[str, Any] = {"p50_ns": 100e3, "rx_wakes_per_s": 500.0}
    said = kept(
        [
            *calm,
            run("0", 1.2, **end),
            run("I", 1.2, p50_ns=99e3, rx_wakes_per_s=501.0, rx_share=0.1),
            run("II", 1.2, **end, ring_waits=3.0, rx1_rx2=1.5, unexplained=-0.02),
        ]
    )
    assert said["64: mode 0 waits for the Tx ring"]
    assert said["64: II waits more than I by"]
    assert said["64: 0, DE: delay, 120 % / 50 %"]
    assert not said["64: I, DE: delay, 120 % / 50 %"]
    assert said["64: 0, DE: Rx wakes, at the end / most"]
    assert not said["64: I, DE: Rx wakes, at the end / most"]
    assert not said["64: I, the receivers' CPU / the sender's, least of the loads from 20 %"]
    assert not said["loss that no ring counted, worst run"]
    assert said["64: II, DE: Rx1 / Rx2 - 1, to 100 %"]  # uneven beyond capacity only


def test_atfnd_is_held_against_the_best_static_mode_of_its_rounds() -> None:
    def of(placement: str, capacity_pps: float) -> Run:
        return run(placement, 0.5)._replace(capacity_pps=capacity_pps)

    said = kept([of("0", 700e3), of("I", 400e3), of("atfnd", 670e3)])
    assert said["64: atfnd beside the best static mode, 0"]
    said = kept([of("0", 700e3), of("I", 400e3), of("atfnd", 660e3)])
    assert not said["64: atfnd beside the best static mode, 0"]


def test_a_figure_is_a_table_of_subjects_and_loads(tmp_path: Path) -> None:
    forward_report.report([run("0", 0.1), run("0", 0.5), run("I", 0.1), run("I", 0.5, loss=0.25)])
    text = (tmp_path / "forward.md").read_text()
    assert "64: Fig. 5, 11: loss, %" in text
    assert "|  | 10% | 50% |" in text
    assert "| I, DE | 0 [0, 0] | 25 [25, 25] |" in text
