# SPDX-License-Identifier: GPL-2.0-or-later
"""The reception `auto`: a queue has interrupts, or another mode where that was measured to pay.

Pure. When the CPU of the queue is short of time, other modes are tried (`compare.trial`), and none
beside a trial of the placement `auto`. A mode that pays stays until it has lost its reason
(`_why_leave`). A queue of few packets has interrupts at once. Queues that have an owner, or are on
CPUs that a flow rule dedicates, may be suspended: an epoll that hangs then delays no strangers.
Nothing is chosen that takes a CPU (`busy`, `dedicated`).

How many polls find nothing is not asked: nothing cheap tells. But each poll that finds something
takes a packet at least: with fewer than a thousand a second, four of five polls 200 us apart find
none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from atfnd.compare.trial import Trial, TrialLook, TrialPhase
from atfnd.compare.trials import Turned
from atfnd.compare.window import Window, rate_of
from atfnd.engine import reception
from atfnd.engine.table.memory import Memory
from atfnd.engine.trials.subjects import DEFERRED, RECEIVING, SUSPENDED
from atfnd.engine.trials.usage import UsageReading, queue_windows
from atfnd.model import NicView, Reception, ReceptionMode
from atfnd.model.reason import Code, Why

__all__ = ["asked", "asking", "queue_looks", "said"]

_LEAST_PPS = 1000.0  # fewer packets have interrupts
_SLACK = 0.5  # of its CPU, if it had interrupts
_WORSE = 0.25  # more CPU time a byte than interrupts took
_OTHER = 2.0  # times as many bytes a second: another load


def asking(nic: NicView, memory: Memory) -> dict[int, str]:
    """The queues of a NIC that can be written whose reception is `auto`, with the flow rule's
    name; empty, if it is the interface's."""
    if not (nic.armed and nic.up) or reception.of_device(nic):
        return {}
    of_rules = memory.nics[nic.name].reception.of_rules
    wanted = {each.index: of_rules.get(each.index, (nic.reception, "")) for each in nic.queues}
    return {
        queue: rule_name
        for queue, (each, rule_name) in wanted.items()
        if each.mode is ReceptionMode.AUTO
    }


def asked(nic: NicView, queues: Iterable[int], memory: Memory) -> list[Turned[int]]:
    """These ask for it from now on, and no others."""
    trials, turned = memory.nics[nic.name].reception.auto, list[Turned[int]]()
    before = trials.states
    trials.states = OrderedDict((queue, trials.state(queue)) for queue in queues)
    for queue, trial in before.items():
        if queue not in trials.states and trial.phase is not TrialPhase.USUAL:
            what = f"{trial.side} -> as its policy asks"
            turned.append(Turned(queue, "back", what, Code.AUTO_UNASKED()))
    return turned


def queue_looks(
    before: UsageReading, now: UsageReading, nic: NicView, memory: Memory
) -> dict[int, TrialLook[Reception]]:
    """Of each queue that asks for it, what it received between two readings."""
    trials = memory.nics[nic.name].reception.auto
    return {
        queue: _looked(trials.states[queue], window, _able(nic, queue, memory))
        for queue, window in queue_windows(before, now, nic, trials.states, memory).items()
    }


def said(nic: str, memory: Memory, now_ns: int) -> dict[int, str]:
    """Of each queue whose reception is `auto`, in a clause."""
    trials = memory.nics[nic].reception.auto
    return {queue: trials.in_words(queue, now_ns) for queue in trials.states}


def _able(nic: NicView, queue: int, memory: Memory) -> tuple[Reception, ...]:
    """What can be had there."""
    known = memory.nics[nic.name]
    alone = queue in known.owned or queue in known.reception.of_rules
    candidates = (SUSPENDED, DEFERRED) if alone else (DEFERRED,)
    return tuple(each for each in candidates if reception.can_have(nic, queue, each, memory))


def _looked(
    trial: Trial[Reception], window: Window, able: tuple[Reception, ...]
) -> TrialLook[Reception]:
    cpu, share = window.fullest(window.rx_cpus)
    other = None
    if window.void is None and trial.judged is not None:
        rate, then = max(1.0, window.bytes_per_s), max(1.0, trial.judged)
        other = max(rate / then, then / rate) > _OTHER
    if window.void is None and window.packets * 1e9 / window.length_ns < _LEAST_PPS:
        few = Code.FEW_PACKETS(_LEAST_PPS)
        window = window._replace(void=few)
        return TrialLook(window, (), cpu, share, few, leave=few, at_once=True, other=other)
    why = window.void
    if why is None and share < RECEIVING.share:
        why = Code.TAKES(share, cpu)
    elif why is None and not able:
        why = Code.NO_OTHER_MODE()
    before, leave, worse = trial.before, None, None
    if trial.phase is TrialPhase.KEPT and before is not None:
        worse = _worse(before, window, share)
        leave = _why_leave(trial, before, window) or worse
    able = able if window.bytes else ()
    return TrialLook(window, able, cpu, share, why, leave, worse is not None, other=other)


def _why_leave(trial: Trial[Reception], before: Window, window: Window) -> Why | None:
    """Why what is kept has lost its reason, but for its price. None: it has one."""
    if window.void is not None:
        return window.void
    if not window.there:
        return Code.OTHER_MODE()
    rate, then, judged = window.bytes_per_s, max(1.0, before.bytes_per_s), trial.judged or 0.0
    (cpu,) = window.rx_cpus
    if (usual := before.fullest(before.rx_cpus)[1] * rate / then) < _SLACK:
        return Code.WOULD_TAKE(usual, cpu)
    if rate > _OTHER * max(1.0, judged):
        return Code.CARRIES_MORE(rate_of(rate), rate_of(judged))
    return None


def _worse(before: Window, window: Window, share: float) -> Why | None:
    """It takes more CPU time than interrupts took, where that is short. None: it does not."""
    if window.void is not None or share < RECEIVING.share:
        return None
    cpus = before.cpus | window.cpus
    pair = window.beside(before), before.beside(window)
    now, then = (each.figures(cpus).bytes_per_cpu_s for each in pair)
    if now * (1 + _WORSE) >= then:
        return None
    return Code.DEARER(now / max(1.0, then))
