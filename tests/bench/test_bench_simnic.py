# SPDX-License-Identifier: GPL-2.0-or-later
"""What the benches on the test driver do on the host: build the rival, choose contenders, and make
a report of what a guest measured. The figures here are made up; the guest's are measured in
tests/guest/test_bench_rules.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from bench import guest, locality, ordering_report, plot, reaction, rules
from bench.bed import Bed
from bench.contenders import contenders
from bench.netns import inode

ROUNDS = 6


@pytest.fixture(autouse=True)
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where they are drawn."""
    monkeypatch.setattr(plot, "FOLDER", tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def rules_ioctl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rules.compiled(tmp_path_factory.mktemp("rival"))


def ioctl(program: Path, *arguments: str, rules: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *arguments], input=rules, capture_output=True, text=True)


def test_the_rival_in_c_says_what_the_kernel_says(rules_ioctl: Path) -> None:
    none = ioctl(rules_ioctl, "lo", "insert")
    assert (none.returncode, none.stderr) == (0, "")
    assert re.fullmatch(r"\d+\n", none.stdout)  # nanoseconds, of no rules
    for step in ("insert", "delete"):
        refused = ioctl(rules_ioctl, "lo", step, rules="10.0.0.1 1 10.0.0.2 2 0 7\n")
        assert refused.returncode == 1
        assert refused.stderr == f"rules_ioctl: {step} of rule 0: Operation not supported\n"
    assert "usage" in ioctl(rules_ioctl, "lo", "list").stderr
    assert "no IPv4 address" in ioctl(rules_ioctl, "lo", "insert", rules="x 1 y 2 0 7\n").stderr


def test_a_batch_is_of_flows_of_its_own_at_locations_of_its_own() -> None:
    others, batch = rules.filters(3936, 0, 1), rules.filters(64, 4095, -1)
    assert len({each.location for each in others + batch}) == 4000
    assert len({each.key for each in others + batch}) == 4000
    assert [each.location for each in batch[:2]] == [4095, 4094]


def test_filters_per_second_and_their_ratios(pictures: Path) -> None:
    one_ns = {"ethtool": 30e6, "atfnd": 0.3e6, "ioctl": 15e3}
    measured = {
        size: {who: {step: [ns] * ROUNDS for step in rules.STEPS} for who, ns in one_ns.items()}
        for size in ("64", "4000")
    }
    report = rules.report(json.loads(json.dumps(measured)))
    values = {(row.what, row.contender): row.estimate.value for row in report.rows}
    assert values["insert, 64 in the table", "ioctl"] == pytest.approx(1e9 / 15e3)
    assert values["delete, 4000 in the table", "atfnd / ethtool"] == pytest.approx(100)
    assert values["re-steer, 64 in the table", "ioctl / atfnd"] == pytest.approx(20)
    assert len(report.targets) == 2 * len(rules.STEPS)
    assert all(target.met for target in report.targets)
    assert (pictures / "rules.png").exists()


def test_locality_counts_every_contender_that_ran(pictures: Path) -> None:
    runs = [
        locality.Run(mode, 40, name, 0.5, share, 2.0)
        for mode in locality.MODES
        for name, share in (("rss", 0.25), ("arfs", 1.0), ("atfnd", 1.0))
        for _ in range(ROUNDS)
    ]
    load = locality.SIMNIC._replace(counts=(40,))
    report = locality.report(json.loads(json.dumps({"runs": runs, "notes": ["n"]})), load)
    values = {(row.what, row.contender): row.estimate.value for row in report.rows}
    assert values["pinned, 2n = 40, settled", "atfnd / rss"] == 4.0
    assert values["migrating, 2n = 40, all of it", "arfs"] == 0.5
    assert values["pinned, 2n = 40, core to core", "arfs"] == 2.0
    assert [target.met for target in report.targets] == [True, True]
    assert {picture.name for picture in pictures.iterdir()} == {
        "locality-simnic-pinned.png",
        "locality-simnic-migrating.png",
    }


def test_reaction_has_targets_on_the_lab_only() -> None:
    measured = {
        "past_dwell_ms": {"rfs": [[1.0]], "arfs": [[2.0]], "atfnd": [[4.0, 4.0]]},
        "gaps_ms": [],
        "dwell_ms": 10,
    }
    report = reaction.report(json.loads(json.dumps(measured)), reaction.SIMNIC)
    values = {(row.what, row.contender): row.estimate.value for row in report.rows}
    assert values["p50", "atfnd / rfs"] == 4.0
    assert values["p50", "atfnd / arfs"] == 2.0
    assert report.targets == []
    assert [target.met for target in reaction.report(measured, reaction.LAB).targets] == [
        False,
        True,
    ]


def test_of_emulated_moves_only_those_called_proven_are_judged(pictures: Path) -> None:
    run = ordering_report.Run(
        way="strict", streams=40, seconds=9.0, moves=50, reordered={"unproven": 2}, queue_moves=0,
        writes=50, kernel_filters=0, late=3, reported=3, disagreed=0, stray=0,
        late_after_ns=[("unproven", 5)] * 3, received=900, lost=0, ring_drops=0,
        verdicts={"proven": 48, "unproven": 2, "deferred": 9},
        deferred={"other threads keep CPU N busy": 9},
        took_ns=(1, 2), delays_ns=(1, 2), moved_ns=None, neighbours_ns=None, timers_ns={0: 7},
    )  # fmt: skip
    kernels = run._replace(way="arfs", reordered={}, late=0, kernel_filters=4, verdicts={})
    report = ordering_report.report(json.loads(json.dumps([run, kernels])), emulated=True)
    assert [(target.reached, target.met) for target in report.targets] == [(0, True)]
    assert "arfs: 4 filters of the kernel's in the NIC, 2n = 40" in report.notes
    assert (pictures / "ordering-simnic.png").exists()
    late = ordering_report.report([run._replace(reordered={"proven": 1})], emulated=True)
    assert not late.targets[0].met


def test_only_a_nic_with_arfs_runs_it() -> None:
    bed = Bed("eth0", "eth0", None, "peer", "10.0.0.1", 2, (0, 1))
    assert list(contenders(bed)) == ["rss", "rfs", "atfnd"]
    with_arfs = Bed("eth0", "eth0", None, "peer", "10.0.0.1", 2, (0, 1), arfs=True)
    assert list(contenders(with_arfs)) == ["rss", "rfs", "arfs", "atfnd"]


def test_what_this_machine_says() -> None:
    assert inode(None) == os.stat("/proc/self/ns/net").st_ino
    assert guest.NAMES == (
        "rules",
        "locality-simnic",
        "reaction-simnic",
        "ordering-simnic",
        "unpinned-simnic",
        "forward-simnic",
        "waiting-simnic",
        "machine",
        "observed",
    )
