# SPDX-License-Identifier: GPL-2.0-or-later
"""Every other setting that steers packets (`nic.Nic.knobs`): write one, undo all, find drift.

The original value is journaled before the first write, and every value before it is written. What
somebody else wrote over ours is his: it is neither written again nor put back.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import NamedTuple, Protocol

from atfnd.model import Action, ActionKind, Outcome, brief
from atfnd.program.originals import Held, Originals
from atfnd.program.record_file import Unrecorded

__all__ = ["DONE", "Knobs", "Undone", "apply", "drifted", "unchanged", "undo", "written"]

DONE = 0, errno.ESTALE, errno.ENOENT, errno.ENODEV  # undone, or nothing of ours is there
_MACHINE_WIDE = "rps-sock-flow-entries"  # net.core: one for all NICs


class Knobs(Protocol):
    """What has them: a NIC (`nic.Nic`), or the cgroups (`program.cpuset`)."""

    @property
    def name(self) -> str: ...
    def knob(self, name: str) -> str | None: ...
    def set_knob(self, name: str, value: str) -> None: ...


class Undone(NamedTuple):
    """What became of one knob that was ours."""

    knob: str
    errno: int  # 0: it is as it was; ESTALE: somebody else's now; or the kernel's refusal
    left: str


def apply(nic: Knobs, originals: Originals, action: Action, *, verbatim: bool = False) -> Outcome:
    """Write `action.knob`; a refusal is an Outcome. ESTALE: it is not what we wrote last, so it is
    somebody else's. EIO: the kernel took it and did nothing. `verbatim`: it reads as it is written,
    so what it reads otherwise, however soon, is somebody else's; else that is the kernel's way to
    say what was written."""
    knob, value = action.knob, action.value
    if action.kind is not ActionKind.KNOB or knob is None or value is None:
        raise ValueError(f"a knob without name or value: {action}")

    def outcome(code: int, left: str) -> Outcome:
        return Outcome(action, time.monotonic_ns(), code, None, left)

    try:
        before = nic.knob(knob)
        if before == value:
            return outcome(0, "it is so already")
        if before is None:
            return outcome(errno.ENOENT, f"this NIC has no {knob} now")
        write = partial(_set, nic, knob, value)
        after = written(nic, originals, knob, value, write, verbatim=verbatim)
    except OSError as refusal:
        return outcome(refusal.errno or errno.EIO, f"{knob} {unchanged(refusal)}")
    if after == before:
        return outcome(errno.EIO, f"the kernel took it, and {knob} is {brief(before)} still")
    if after is not None and after != value:
        return outcome(0, f"{knob} reads {brief(after)}")
    return outcome(0, "as planned")


def written(
    nic: Knobs,
    originals: Originals,
    knob: str,
    value: str,
    write: Callable[[], None],
    *,
    verbatim: bool = False,
) -> str | None:
    """Journal, write and, unless `verbatim`, read back. OSError: refused, and the journal is as
    before. ESTALE: it is not what we wrote last, so it is somebody else's."""
    before = nic.knob(knob)
    if before is None:
        raise OSError(errno.ENOENT, f"no {knob} now")
    if _moved(originals.held(nic.name).get(knob), before):
        raise OSError(errno.ESTALE, f"somebody else set it to {brief(before)}")
    held = originals.held(nic.name).get(knob)
    originals.note(nic.name, knob, before)
    originals.wrote(nic.name, knob, value)
    try:
        write()
    except OSError:
        if held is None or held.wrote is None:
            originals.forget(nic.name, knob)
        else:
            originals.settled(nic.name, knob, held.wrote)
        raise
    after = value if verbatim else nic.knob(knob)
    originals.settled(nic.name, knob, value if after is None else after)  # in the kernel's words
    return after


def unchanged(refusal: OSError) -> str:
    """Why something stays as it is, in words."""
    if refusal.errno == errno.ESTALE:
        return f"is left: {refusal.strerror}"
    why = os.strerror(refusal.errno or errno.EIO)
    if isinstance(refusal, Unrecorded):
        why = f"the journal cannot be written: {why}"
    return f"stays as it is ({why})"


def drifted(nic: str, knobs: Mapping[str, str], originals: Originals) -> dict[str, str]:
    """Which of our knobs on this NIC somebody else moved, and where to; `knobs` is how they are."""
    held = originals.held(nic).items()
    return {knob: knobs[knob] for knob, ours in held if knob in knobs and _moved(ours, knobs[knob])}


def undo(nic: Knobs, originals: Originals, only: Collection[str] | None = None) -> list[Undone]:
    """Put back, last written first, every original (or `only` these) whose knob is what we wrote.
    One that somebody else moved since is left as it is. All are forgotten but those the kernel
    refuses."""
    done = []
    for knob, held in reversed(list(originals.held(nic.name).items())):
        if only is not None and knob not in only:
            continue
        code, left = _undo(nic, originals, knob, held)
        if code in DONE:
            originals.forget(nic.name, knob)
        done.append(Undone(knob, code, left))
    return done


def _undo(nic: Knobs, originals: Originals, knob: str, held: Held) -> tuple[int, str]:
    try:
        now = nic.knob(knob)
        if now is None:
            return errno.ENOENT, "it is not there any more"
        if now == held.original:
            return 0, f"is {brief(now)} as before"
        if _moved(held, now):
            return errno.ESTALE, f"left at {brief(now)}: somebody else set it"
        if knob == _MACHINE_WIDE and (other := _also_needs(nic.name, originals)):
            originals.note(other, knob, held.original)
            originals.wrote(other, knob, now)
            return 0, f"left at {brief(now)} for {other}"
        _set(nic, knob, held.original)
        after = nic.knob(knob)
    except OSError as refusal:
        code = refusal.errno or errno.EIO
        return code, f"the kernel refused to put back {brief(held.original)} ({os.strerror(code)})"
    if after not in (None, held.original):
        return 0, f"is {brief(after)}, which stands for {brief(held.original)}"
    return 0, f"is {brief(held.original)} again"


def _set(nic: Knobs, knob: str, value: str) -> None:
    """OSError(ENOENT): it has gone since it was read, with its queue or its interface."""
    try:
        nic.set_knob(knob, value)
    except KeyError as gone:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), knob) from gone


def _moved(held: Held | None, now: str) -> bool:
    """It is not what we wrote last."""
    return held is not None and not held.ours(now)


def _also_needs(nic: str, originals: Originals) -> str | None:
    """Another NIC whose packets RFS hands on by our doing."""
    for other in originals.nics():
        knobs = originals.held(other)
        counts = [held.wrote for knob, held in knobs.items() if knob.startswith("rps-flow-cnt:")]
        if other != nic and any(count not in (None, "0") for count in counts):
            return other
    return None
