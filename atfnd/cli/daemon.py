# SPDX-License-Identifier: GPL-2.0-or-later
"""From opened NICs to a running daemon, and back to nothing open."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from atfnd.cli.restore import opened, say_refused, troubles
from atfnd.daemon.chores import Pace
from atfnd.daemon.guarding import GuardPace
from atfnd.daemon.interface_rules import Given
from atfnd.daemon.supervisor import Supervisor
from atfnd.daemon.wanted_reports import asked
from atfnd.errors import OperatorError
from atfnd.model import Policy
from atfnd.observe.machine.topology import topology
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NicWatch
from atfnd.observe.sockets.choose import choose
from atfnd.program.restore import restored
from atfnd.serve.api.http import serve
from atfnd.serve.notify import Notify

__all__ = ["steer"]

_ENDING = signal.SIGTERM, signal.SIGINT


def steer(
    interfaces: Interfaces,
    watches: Sequence[NicWatch],
    policy: Policy,
    read: Callable[[], Policy],
    arm: tuple[str, ...],
    run_dir: Path,
    observer: str | None,
) -> None:
    """Until SIGTERM or SIGINT. `read` reads the policy again. OperatorError: it cannot start, or
    something is left at the end."""
    pace = Pace.of(os.environ)
    if pace != Pace():  # chores cost more then than the budget is for
        usual, read = read, lambda: replace(usual(), cpu_share=1.0)
        policy = replace(policy, cpu_share=1.0)
    with ExitStack() as stack:
        asked_types = asked(policy, topology())
        chosen, why = choose(observer or policy.observer, asked_types)
        stack.callback(chosen.close)
        journals = opened(run_dir, stack)
        daemon = Supervisor(interfaces, chosen, why, policy, *journals, Given(read, arm))
        for name, refusal in interfaces.refused.items():
            daemon.log.add("refused", "not watched", refusal, nic=name)
        for trouble in troubles(*journals):
            daemon.log.add("journal", trouble)
        faulthandler.enable()  # a watchdog's SIGABRT shows where the loop stood
        daemon.notify_by(Notify.of(os.environ, daemon.log))
        daemon.pace, daemon.guard_pace = pace, GuardPace.of(os.environ)
        journal, undo_journal, _ = journals
        try:
            asyncio.run(_until_stopped(daemon, watches, run_dir / "atfnd.sock"))
        finally:
            done = restored(journal, undo_journal) if daemon.restoring else []
            why = "atfnd stops, and the policy says on_stop: restore"
            for each in done:
                kind = "undo" if each.done else "refused"
                daemon.log.add(kind, f"{each.what} {each.left}", why, nic=each.nic)
        say_refused(done)
        if daemon.left and not daemon.restoring:
            what = f"it has stopped, but {'; '.join(daemon.left)}"
            raise OperatorError(what, "atfnd restore puts all back", exit_code=1)


async def _until_stopped(
    daemon: Supervisor, watches: Sequence[NicWatch], socket_path: Path
) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _ENDING:
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, daemon.hangup.set)
    server = await serve(daemon.source, socket_path, daemon.page.turn)
    try:
        await daemon.run(watches, stop, server.stop, socket_path)
    finally:
        await server.stop()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # what follows is done to its end
