# SPDX-License-Identifier: GPL-2.0-or-later
"""The rule of a flow that is gone is the newcomer's that has its 5-tuple: table and move."""

from __future__ import annotations

import errno

from hypothesis import given
from hypothesis import strategies as st

from atfnd.engine import audit
from atfnd.engine.handshake import birth
from atfnd.engine.placement import steer
from atfnd.engine.table import retire
from atfnd.model import FlowState, Outcome
from atfnd.move import device as machine
from atfnd.move.command import Ended, Write
from atfnd.move.device import NicMoves
from atfnd.move.event import FlowClosed, TimerDue, Wanted, Written
from atfnd.move.timer import Times
from atfnd.move.verdict import Mode, Verdict
from tests.engine.test_birth import STRICT, memory, syn
from tests.move.test_move_mover import LIKELY
from tests.values import NIC, flow, key, seen

STEERED = flow(1, state=FlowState.STEERED, location=7, target_queue=2, app_cpu=2)
NEW = 5000  # the first newcomer's cookie


@given(
    st.lists(st.sampled_from(["close", "connect", "accept", "use", "wait"]), max_size=30),
    st.booleans(),
)
def test_no_living_sockets_rule_is_ever_deleted(steps: list[str], reported_at_once: bool) -> None:
    """The kernel here is a fake: which socket lives. Ends of sockets are reported late, or at
    once."""
    known, moves, now_ns = memory(), NicMoves(LIKELY, Times()), 10**9
    known.table.put(STEERED)
    cookie_now: int | None = STEERED.cookie
    unreported: list[int] = []
    cookies = iter(range(NEW, NEW + 99))

    def want(cookie: int) -> None:
        nonlocal moves
        for action in retire.gone(cookie, known):
            for event in (FlowClosed(key(1)), Wanted(action, Mode.STRICT, live=False)):
                moves, commands = machine.step(moves, event, now_ns)
                assert not any(isinstance(each, Write) for each in commands)

    for step in [*steps, "wait", "wait"]:
        if step == "close" and cookie_now is not None:
            unreported, cookie_now = [*unreported, cookie_now], None
        elif step == "connect" and cookie_now is None:
            cookie_now = next(cookies)
            again_ = syn(1, 2)._replace(cookie=cookie_now)
            birth.again(again_, NIC, STRICT, known, now_ns)
        elif step == "accept" and cookie_now is None:
            cookie_now = next(cookies)  # told by nobody
        elif step == "use" and cookie_now is not None:
            steer.seen(seen(1, 2, cookie=cookie_now), NIC, STRICT, known, now_ns)
        if reported_at_once or step == "wait":
            for cookie in unreported:
                want(cookie)
            unreported = []
        if step == "wait":
            now_ns += Times().quiet_ns
            moves, commands = machine.step(moves, TimerDue(), now_ns)
            for write in commands:
                if not isinstance(write, Write):
                    continue
                kept = cookie_now is not None and (
                    audit.inherit(NIC, write.action, cookie_now, known, now_ns) is not None
                )
                assert kept == (cookie_now is not None)
                code = errno.ECANCELED if kept else 0
                outcome = Outcome(write.action, now_ns, code, 7, "")
                audit.record(outcome, known)
                moves, ends = machine.step(moves, Written(outcome, now_ns, now_ns), now_ns)
                [ended] = (each for each in ends if isinstance(each, Ended))
                assert ended.verdict is (Verdict.DEFERRED if kept else Verdict.DONE)
                if not kept:
                    return
    entry = known.table.get(key(1))
    assert entry is not None
    assert (entry.location, not moves.live) == (7, True)
