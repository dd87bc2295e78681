# SPDX-License-Identifier: GPL-2.0-or-later
"""What `doctor` and `explain` say of settings of the whole machine: the budget of the receive
softirq. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from atfnd.model import Finding, HostStanding, Level, Machine, NicView, Queue
from atfnd.model.softirq_budget import PACKETS

__all__ = ["budget_of", "examine_host"]

_TUNER = "bpftune"

_ADVICE = {
    "manual": "to take it back: atfnctl resume NIC",
    "refused": "atfnctl events says why; of time, Linux takes no less than two ticks of its timer, "
    "which are 2 to 20 ms",
    "unknown": "run atfnd in the first network namespace, or take host.softirq_budget out",
}


def examine_host(
    settings: Sequence[HostStanding], machine: Machine, nics: Iterable[NicView]
) -> Iterator[Finding]:
    """Findings on those that the policy asks for, or that are ours. `nics` are served."""
    asked = [each for each in settings if each.wanted is not None]
    for each in settings:
        if each.state == "set" and each.wanted is not None:
            yield Finding(None, Level.OK, f"{each.setting} is {each.now}, as the policy asks")
        elif each.state != "left":
            what = f"{each.setting} is {each.now or 'not there'}"
            if each.wanted is not None:
                what += f" and should be {each.wanted}"
            level = Level.NOTE if each.state in ("set", "wanted") else Level.WARNING
            yield Finding(None, level, f"{what}: {each.why}", _ADVICE.get(each.state))
    if not asked:
        return
    queues = [queue for nic in nics for queue in nic.queues]
    if queues and not any(map(_by_softirq, queues)):
        what = "the softirq budget of the policy has no effect on the queues that atfnd serves"
        why = "NAPI threads poll them, and do not ask for it"
        yield Finding(None, Level.NOTE, f"{what}: {why}")
    for rival in machine.rivals:
        if rival.name == _TUNER:
            what = (
                f"{_TUNER} (pid {rival.pid}) changes the softirq budget: atfnd then leaves it alone"
            )
            advice = "take host.softirq_budget out of the policy, or net_buffer out of bpftune"
            yield Finding(None, Level.WARNING, what, advice)


def budget_of(queue: Queue, settings: Sequence[HostStanding]) -> str | None:
    """A sentence on the budget that a queue is polled with. None: the policy asks for none, or it
    does not have it."""
    ours = [each for each in settings if each.wanted is not None and each.state == "set"]
    if not ours:
        return None
    if not _by_softirq(queue):
        return "A NAPI thread polls its queue: the softirq budget of the policy does not bound it."
    ends = (f"{each.now} {'packets' if each.setting == PACKETS else 'us'}" for each in ours)
    return f"The softirq that polls its queue ends a pass after {' or '.join(ends)} (policy)."


def _by_softirq(queue: Queue) -> bool:
    """A thread that is borrowed for a move is soon given back."""
    return not queue.threaded or queue.borrowed
