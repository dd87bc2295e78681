# SPDX-License-Identifier: GPL-2.0-or-later
"""A process that moves one flow of a lab, for tests: on and on, until stdin ends.

    python tests/daemon/mover.py LAB RUN_DIR SCENE HOLD_MAX_NS COOKIE LOCAL_PORT REMOTE_PORT

It says `ready` once it can, begins at the first line it reads, and says how each move ended: its
verdict and why. A scene is how it moves: `strict` and `bounded` there and back again (`bounded`
without a hold), `reset` as strict with a NIC that is reset meanwhile, `birth` the flow's first
rule, `retire` the end of it.
"""

from __future__ import annotations

import select
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from atfnd.lab.wiring import HOST4, PEER4
from atfnd.model import ActionKind, FlowKey, Protocol
from atfnd.move.event import Event, Reset, Wanted
from atfnd.move.verdict import Mode
from atfnd.nic.lab.nic import LabNic
from tests.labs import packed
from tests.move.moving import ANOTHER_AT_ONCE, Moving

HOUR_NS = 3600 * 10**9
RSS = frozenset({0})


def _events(flow: Moving, scene: str) -> tuple[Event, ...]:
    """What makes one more move begin."""
    match scene:
        case "strict":
            return (flow.wanted(Mode.STRICT),)
        case "bounded":
            return (flow.wanted(Mode.BOUNDED),)
        case "reset":
            return flow.wanted(Mode.STRICT), Reset()
        case "birth":
            insert = flow.action(ActionKind.INSERT, None, flow.new)
            first_data_ns = time.monotonic_ns() + HOUR_NS
            return (Wanted(insert, Mode.STRICT, RSS, RSS, first_data_ns=first_data_ns),)
        case _:
            delete = flow.action(ActionKind.DELETE, flow.old, None)
            return (Wanted(delete, Mode.STRICT, live=False),)


def _may_begin() -> bool:
    return bool(select.select([sys.stdin], [], [], 0.001)[0])


def main(
    lab: str, run_dir: str, scene: str, hold_max_ns: str, cookie: str, local: str, remote: str
) -> None:
    key = FlowKey(Protocol.UDP, packed(HOST4), int(local), packed(PEER4), int(remote))
    times = replace(ANOTHER_AT_ONCE, hold_max_ns=int(hold_max_ns))
    with ExitStack() as undo:
        flow = Moving(LabNic(lab), key, int(cookie), Path(run_dir), times, undo)
        if scene != "birth":
            flow.place()
        if scene == "bounded":
            device = flow.moves.device
            flow.moves.device = device._replace(port=device.port._replace(holds_max=0))
        print("ready", flush=True)
        sys.stdin.readline()
        while not _may_begin():
            before = len(flow.ended)
            if before == len(flow.began_ns):
                flow.tell(*_events(flow, scene))
            flow.look()
            flow.look_at_link()
            for ended in flow.ended[before:]:
                print(ended.verdict.value, ended.why, sep=": ", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
