# SPDX-License-Identifier: GPL-2.0-or-later
"""The placement `auto`: an application is on its core, or off it where that was measured to pay.

Pure. When its core is saturated (softirq and its threads), its flows are tried under `llc`
(`compare.trial`). Where that pays it stays, until it carries less than half of what saturated its
core. What was learned is kept by application, not by flow: flows come and go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atfnd.compare.trial import Trial, TrialLook, TrialPhase
from atfnd.compare.window import Window, rate_of
from atfnd.engine.placement.place import guest
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.subjects import LLC, Application
from atfnd.engine.trials.usage import UsageReading, windows
from atfnd.model import Flow, NicView, Placement
from atfnd.model.reason import Code

__all__ = ["application_looks", "looked"]

_LEAST_BYTES = 1 << 20  # of a window
_SLACK = 0.5  # of the bytes a second that saturated its core


def application_looks(
    before: UsageReading,
    now: UsageReading,
    nic: NicView,
    flows_of: Mapping[Application, Sequence[Flow]],
    memory: Memory,
) -> dict[Application, TrialLook[Placement]]:
    """Of each application on this NIC, what it did between two readings."""
    trials = memory.nics[nic.name].trials
    return {
        each: looked(trials.state(each), window, _has_llc(flows_of[each], nic, memory))
        for each, window in windows(before, now, nic, flows_of, memory).items()
    }


def looked(trial: Trial[Placement], window: Window, able: bool) -> TrialLook[Placement]:
    """`able`: all its flows can have `llc`."""
    before, void, leave = trial.before, window.void, None
    if void is None and trial.trying and before is not None and window.flows != before.flows:
        void = Code.FLOWS_CHANGED()
    elif void is None and window.bytes < _LEAST_BYTES:
        void = Code.FEW_BYTES()
    elif void is None and trial.phase is TrialPhase.KEPT and before is not None:
        rate, then = window.bytes_per_s, before.bytes_per_s
        if rate < _SLACK * then:
            leave = Code.CARRIES_LESS(rate_of(rate), rate_of(then))
    cpu, share = window.fullest(window.app_cpus)
    here = window._replace(void=void)
    return TrialLook(here, (LLC,) if able else (), cpu, share, leave=leave)


def _has_llc(flows: Sequence[Flow], nic: NicView, memory: Memory) -> bool:
    return all(
        guest(LLC, flow.app_cpu, flow.thread, nic, memory).fell_back is None for flow in flows
    )
