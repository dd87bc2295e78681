# SPDX-License-Identifier: GPL-2.0-or-later
"""Which test runs in which tier, and which runs alone: the one table of it.

`quick` is `make test`; `full` is what `make test-all` runs besides; `demand` runs in `make soak` or
when it is named: most of it judges the tests or the benches, not the product. A file that is not
named here is quick and runs beside others. `soak` repeats what has chance or counts in it, for
hours. A file of `tests/guest` is `full` (`test_guest` runs it), or `demand` if it is named there.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["ALONE", "DEMAND", "FULL", "LONG", "SOAK", "file_of", "markers"]

HERE = Path(__file__).parent

# Not in `make test`: long runs, and what measures.
FULL = {
    "test_api_fuzz": "thousands of requests",
    "test_auto_lab": "trials of a placement last seconds each",
    "test_autopiloted": "trials of a reception last seconds each",
    "test_bench_demo": "runs the demo",
    "test_broken_holds": "kills at every step of a move",
    "test_completion": "three shells that start slowly",
    "test_daemon_killed": "kills at every step of a move",
    "test_fail_open": "kills at every step of a move",
    "test_flood": "50,000 attempts a second",
    "test_full": "waits for flows that find no room",
    "test_gain_lab": "compares shares of traffic",
    "test_guarding": "pairs of slots, fifteen of them",
    "test_guest": "every file of tests/guest",
    "test_hold": "a hold gives up where others keep its CPU",
    "test_indirection": "minutes of traffic",
    "test_install": "builds a package from nothing",
    "test_irqbalance": "waits for the sleep of a real irqbalance",
    "test_measuring": "slots of seconds each",
    "test_move_proof": "every way that a move can take",
    "test_order": "minutes of traffic",
    "test_page_shown": "a browser",
    "test_random_faults": "faults by chance",
    "test_reload": "a policy after the other under traffic",
    "test_servers": "downloads nginx, memcached and unbound",
    "test_sharing": "flows that come to share a filter, and leave it",
    "test_top": "minutes at a terminal",
    "test_typed_commands": "a hundred commands of the documents",
}
# Faults in moves that the proof must see, benches, what is bound to one QEMU or needs a CPU that
# nobody else uses, and the guest's test driver by itself: what uses it would fail, too.
DEMAND = (
    "test_bench_harness",
    "test_bench_ordering",
    "test_counted_guest",
    "test_full_cores",
    "test_move_mutations",
    "test_observed_again",
    "test_simnic",
)

# Nothing runs beside them.
ALONE = {
    "test_full_cores": "keeps one CPU full, and the other one is not to be",
    "test_gain_lab": "compares shares",
    "test_rfs": "sets the table of RFS that the whole machine has",
    "test_with_rfs": "sets the table of RFS that the whole machine has",
    "test_softirq_budget": "sets the budget of softirqs that the whole machine has",
    "test_measuring": "measures",
    "test_guarding": "measures",
    "test_auto_lab": "threads with real-time priority, and shares of CPUs",
    "test_autopiloted": "threads with real-time priority, and shares of CPUs",
    "test_bench_demo": "measures",
    "test_bench_harness": "measures",
    "test_bench_ordering": "measures",
    "test_flood": "measures",
    "test_guest": "a guest keeps both CPUs busy",
    "test_hold": "a hold gives up where others keep its CPU",
    "test_order": "counts late packets",
}

# First, so that no worker is left with one of them at the end.
LONG = (
    "test_fail_open",
    "test_daemon_killed",
    "test_order",
    "test_move_proof",
    "test_top",
    "test_reload",
    "test_indirection",
    "test_forwarding_daemon",
    "test_run",
    "test_steering",
    "test_sockdiag",
    "test_ctl",
    "test_arming",
    "test_matching_daemon",
    "test_ending",
    "test_ctl_exit",
    "test_bad_start",
    "test_restore",
    "test_placements",
    "test_link",
    "test_nothing_left",
    "test_layers",
    "test_recording",
    "test_operator_journal",
    "test_manual",
)

# What `make soak` repeats, besides everything that hypothesis drives.
SOAK = (
    "test_random_faults",
    "test_daemon_killed",
    "test_fail_open",
    "test_broken_holds",
    "test_restore",
    "test_auto_lab",
    "test_run",
)


def file_of(stem: str) -> Path:
    """Where the test file of this name is, on the machine or else in the guest. ValueError: not
    one."""
    files = sorted(HERE.rglob(f"{stem}.py"), key=lambda each: each.parent.name == "guest")
    [file, *_] = [each for each in files if each.parent == files[0].parent]
    return file


def markers(file: Path) -> set[str]:
    """The tier of the tests of this file, and `alone`."""
    stem = file.stem
    tier = "demand" if stem in DEMAND else "full" if stem in FULL else "quick"
    return {tier} | ({"alone"} if stem in ALONE else set())
