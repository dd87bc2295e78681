# SPDX-License-Identifier: GPL-2.0-or-later
"""The `inventory` bench's report: sockets/s at bootstrap, from what bench/inventory.py measured."""

from __future__ import annotations

from bench import inventory, plot
from bench.report import Report, Target
from bench.stats import median, ratios

__all__ = ["run"]

OURS, RIVALS = ("atfnd_bpf", "atfnd_sock_diag"), ("pyroute2", "ss")
TIMES = 20.0


def run(rounds: int) -> Report:
    """Sockets/s of each contender, and ours as multiples of the rivals'."""
    report = Report("inventory", "sockets listed per second at bootstrap")
    found = inventory.run(rounds=rounds)
    report.samples = dict(found)
    rates = {}
    seconds = found["seconds"]
    for name, each in seconds.items():
        per_s = [found["sockets"] / one for one in each]
        rates[name] = [report.add(f"{found['sockets']} sockets", name, "sockets/s", median(per_s))]
    for ours in OURS:
        for name in RIVALS:
            times = ratios(seconds[name], seconds[ours])
            report.add("sockets/s", f"{ours} / {name}", "×", times)
            if name == RIVALS[0]:
                what = f"{ours} against {name}"
                report.targets.append(Target(what, times.value, TIMES, True, "×"))
    plot.bars("inventory", "Bootstrap", "sockets/s", [str(found["sockets"])], rates, log=True)
    return report
