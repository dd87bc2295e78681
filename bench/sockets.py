# SPDX-License-Identifier: GPL-2.0-or-later
"""The `inventory` bench's report: sockets/s at bootstrap, from what bench/inventory.py measured."""

from __future__ import annotations

from bench import inventory, plot
from bench.report import Report, Target
from bench.stats import median, ratios

__all__ = ["run"]

OURS, RIVAL = ("atfnd_bpf", "atfnd_sock_diag"), "pyroute2"
TIMES = 20.0


def run(rounds: int) -> Report:
    """Sockets/s of each contender, and how many times pyroute2's ours is."""
    report = Report("inventory", "sockets listed per second at bootstrap")
    found = inventory.run(rounds=rounds)
    report.samples = dict(found)
    rates = {}
    for name, seconds in found["seconds"].items():
        per_s = [found["sockets"] / one for one in seconds]
        rates[name] = [report.add(f"{found['sockets']} sockets", name, "sockets/s", median(per_s))]
    for name, seconds in found["seconds"].items():
        for ours in OURS if name not in OURS else ():
            times = ratios(seconds, found["seconds"][ours])
            report.add("sockets/s", f"{ours} / {name}", "×", times)
            if name == RIVAL:
                goal = f"{ours} against {RIVAL}"
                report.targets.append(Target(goal, times.value, TIMES, True, "×"))
    plot.bars("inventory", "Bootstrap", "sockets/s", [str(found["sockets"])], rates, log=True)
    return report
