# SPDX-License-Identifier: GPL-2.0-or-later
"""A forwarding host under load, after the second paper (Salah and Hamawi, Figs. 5 to 13).

Which CPUs the three NAPI threads of a forwarder have (bench/veth_forwarder.py) is its affinity
mode: `I` has both receivers on one CPU and the sender on the other, `II` the sender beside one of
the receivers, and `0`, which the paper could not have, all of them on one CPU. `default` confines
none, `rps` has RPS in addition, and `atfnd` begins with `default` and has a rule for what is
forwarded. Reception: `DE` is a NAPI thread at a real-time priority, which polls until its ring is
empty; `deferred` and `dedicated` are today's, of the two receivers. Each mode's capacity is found
first, with DE. Loads are shares of it: rates of modes differ, and shapes can be compared.

One CPU has the generator too, at a priority above all NAPI threads: in mode I it takes time from
the sender, in II from a receiver, in 0 from nobody. One package cannot show the paper's caches.

Delay is from the generator to the sink (stamps in the frames). CPU time is what BPF saw
(bench/pollers.py). Wakes are voluntary_ctxt_switches of NAPI threads; they stand for interrupts.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from atfnd.errors import OperatorError
from bench.children import prompt, until
from bench.contenders import in_turn
from bench.daemon import daemon
from bench.forward_load import LAB, SIZES, Load, Run, placed
from bench.forward_report import STATIC, report
from bench.forwarder import EGRESS, RECEIVERS, SENDER, built, offered
from bench.polling import INTERRUPT, Polling, dedicated, deferred, polled_as
from bench.report import Report
from bench.veth_forwarder import NAMES, VethForwarder, generators_cpu, veth_forwarder

__all__ = ["Subject", "measure", "run", "subjects"]

Placement = Callable[[VethForwarder], AbstractContextManager[None]]


class Subject(NamedTuple):
    """Who places the NAPI threads, and how they are polled."""

    placement: str
    reception: Polling

    @property
    def reception_name(self) -> str:
        return "DE" if self.reception == INTERRUPT else self.reception.name


@contextlib.contextmanager
def _static(bed: VethForwarder, rx1: int, rx2: int, tx: int) -> Iterator[None]:
    cpus = sorted(os.sched_getaffinity(0))[:2]
    bed.place({name: [cpus[at]] for name, at in zip(NAMES, (rx1, rx2, tx), strict=True)})
    yield


@contextlib.contextmanager
def _default(bed: VethForwarder) -> Iterator[None]:
    bed.place(dict.fromkeys(NAMES, os.sched_getaffinity(0)))
    yield


@contextlib.contextmanager
def _rps(bed: VethForwarder) -> Iterator[None]:
    with _default(bed):
        bed.host.rps(os.sched_getaffinity(0))
        try:
            yield
        finally:
            bed.host.rps(())


POLICY = f"""\
version: 1
about: What is forwarded has its channels together.
interfaces: [{{ match: {{ name: "*" }}, armed: true }}]
forwarding:
  - name: gateway
    match: {{ in: "{"|".join(RECEIVERS)}", out: "{EGRESS}" }}
    placement: {{ pair: core }}
"""
LED_PPS, LED_S = 200_000, 120.0


@contextlib.contextmanager
def _atfnd(bed: VethForwarder) -> Iterator[None]:
    """Nothing is confined, and atfnd places what it sees forwarded. A veth has no interrupt for
    what was sent: the thread that takes it back goes to the CPU of the channel that it left by.
    Measured once the count rests, as it does most of the time while everything is in its place."""
    names = (*RECEIVERS, EGRESS)
    with _default(bed):
        bed.place({EGRESS: os.sched_getaffinity(0)})
        with daemon(names[0], POLICY, more=names[1:], netns=bed.host.fwd) as atfnd:
            with offered(bed.host, LED_PPS, LED_S, "64", generators_cpu()):
                pid = atfnd.process.pid
                until(lambda: _counts(pid) and _together(bed, names), "all are together", LED_S)
                until(lambda: not _counts(pid), "atfnd's count rests", LED_S)
            bed.place({SENDER: os.sched_getaffinity(bed.thread(EGRESS))})
            yield


def _together(bed: VethForwarder, names: Sequence[str]) -> bool:
    """Their threads are on one CPU."""
    cpus = [os.sched_getaffinity(bed.thread(name)) for name in names]
    return len(frozenset[int]().union(*cpus)) == 1


def _counts(pid: int) -> bool:
    """A process counts what is forwarded: it has a BPF link to that tracepoint
    (bpf_link_show_fdinfo(), kernel/bpf/syscall.c)."""
    for each in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if "tp_name:\tnet_dev_start_xmit\n" in each.read_text():
                return True
    return False


PLACEMENTS: dict[str, Placement] = {
    "0": lambda bed: _static(bed, 0, 0, 0),
    "I": lambda bed: _static(bed, 0, 0, 1),
    "II": lambda bed: _static(bed, 0, 1, 0),
    "default": _default,
    "rps": _rps,
    "atfnd": _atfnd,
}


def subjects() -> list[Subject]:
    """Each placement with DE, and the static ones with the other receptions after it."""
    others = (deferred(50), dedicated(100))
    found = []
    for placement in PLACEMENTS:
        receptions = (INTERRUPT, *(others if placement in STATIC else ()))
        found += [Subject(placement, each) for each in receptions]
    return found


def measure(rounds: int, load: Load = LAB, asked: Sequence[Subject] | None = None) -> list[Run]:
    """`rounds` rounds of every subject at every load; placements take turns."""
    if len(os.sched_getaffinity(0)) < 2:
        raise OperatorError("forward needs two CPUs: with one, there is nothing to place")
    chosen = list(asked or subjects())
    placements = list(dict.fromkeys(each.placement for each in chosen))
    runs = list[Run]()
    with (
        prompt(),
        tempfile.TemporaryDirectory() as folder,
        veth_forwarder(built(Path(folder))) as bed,
    ):
        napis = [bed.napis[name] for name in RECEIVERS]
        for turn in range(rounds):
            for placement in in_turn(placements, turn):
                receptions = {
                    each.reception_name: partial(polled_as, each.reception, napis)
                    for each in chosen
                    if each.placement == placement
                }
                with PLACEMENTS[placement](bed):
                    for sizes in SIZES:
                        runs += placed(bed, placement, receptions, sizes, load)
    return runs


def run(rounds: int) -> Report:
    """On three veths of its own."""
    return report(measure(rounds))
