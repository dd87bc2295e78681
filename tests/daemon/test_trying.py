# SPDX-License-Identifier: GPL-2.0-or-later
"""Trials of `placement: auto`, in virtual time: what is tried, what is said of it, what ends it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.simulated import Simulated, simulated, text_of

AUTO = text_of().replace("{ near: core }", "auto")
CPU = 1
FULL_NS = 9_000  # from packet to packet: to receive and to read them fills a core


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Simulated]:
    """The flow of a full core is led to another one, on trial."""
    with simulated(tmp_path, text=AUTO) as bed:
        bed.opens(cpu=CPU, interval_ns=FULL_NS)
        bed.until(lambda: bed.said("trial"))
        bed.until(lambda: led_to(bed) not in (None, CPU))
        yield bed


def led_to(bed: Simulated) -> int | None:
    """The CPU that its filter leads to; each queue is on the CPU of its number."""
    entries = bed.here[0].our_entries()
    return entries[0].queue if entries else None


def kinds(bed: Simulated) -> list[str]:
    return [each.kind for each in bed.said("trial", "kept", "back")]


def test_a_full_core_is_tried_and_what_was_measured_decides(tried: Simulated) -> None:
    [trial] = tried.said("trial")
    assert (trial.nic, trial.rule) == ("eth0", "everything")
    assert trial.what == "app: near core -> near llc"
    tried.until(lambda: tried.said("kept", "back"), 120)
    [end] = tried.said("kept", "back")
    assert re.match(r"[\d.]+ x the bytes a CPU-second, [\d.]+ x the bytes a second ", end.why)
    tried.goes_on()
    assert (led_to(tried) == CPU) is (end.kind == "back")


@pytest.mark.parametrize("order", ["disarm", "pause"])
def test_a_nic_that_takes_no_filters_any_more_ends_a_trial(tried: Simulated, order: str) -> None:
    there = led_to(tried)
    tried.order(order)
    tried.goes_on(60)
    assert kinds(tried) == ["trial", "back"]
    assert led_to(tried) == (there if order == "disarm" else None)


def test_so_does_a_policy_without_auto(tried: Simulated) -> None:
    tried.reload(text_of())
    tried.until(lambda: led_to(tried) == CPU)
    tried.goes_on(60)
    assert "kept" not in kinds(tried)


def test_without_such_a_rule_nothing_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(threads: object) -> None:
        raise AssertionError(threads)

    with simulated(tmp_path) as bed, monkeypatch.context() as refusing:
        refusing.setattr("atfnd.daemon.trying.cpu_time", read)
        bed.opens(cpu=CPU, interval_ns=FULL_NS)
        bed.goes_on(30)
        assert (led_to(bed), kinds(bed)) == (CPU, [])
