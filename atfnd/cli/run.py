# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd run`: from options to a running daemon, and back to nothing open.

Everything that can be wrong is found before anything is changed.
"""

from __future__ import annotations

import asyncio
import errno
import faulthandler
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from atfnd.daemon.chores import Pace
from atfnd.daemon.guarding import GuardPace
from atfnd.daemon.interface_rules import Given
from atfnd.daemon.supervisor import Supervisor
from atfnd.daemon.wanted_reports import asked
from atfnd.errors import OperatorError
from atfnd.model import Restored
from atfnd.observe.machine.topology import topology
from atfnd.observe.nics.interfaces import Interfaces
from atfnd.observe.nics.watch import NicWatch
from atfnd.observe.sockets.choose import choose
from atfnd.policy.file.load import load
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.restore import restored, take_back
from atfnd.serve.api.http import serve
from atfnd.serve.notify import Notify
from atfnd.trust import doubt, open_regular

__all__ = ["RUN_DIR", "restore", "run"]

RUN_DIR = Path("/run/atfnd")
_ENDING = signal.SIGTERM, signal.SIGINT


def _need_root() -> None:
    if os.geteuid() != 0:
        raise OperatorError("this needs root", "run it with sudo", exit_code=1)


@contextmanager
def _alone(run_dir: Path) -> Iterator[None]:
    """Only one daemon per run directory; the lock dies with its holder."""
    try:
        run_dir.mkdir(mode=0o755, parents=True, exist_ok=True)
        if run_dir.is_symlink():
            raise OSError(errno.ELOOP, "it is a symbolic link", str(run_dir))
        suspect = doubt(run_dir, run_dir.stat(), os.geteuid())
        if suspect is not None:
            raise OperatorError(f"{suspect.why}: not a place for journals", suspect.mend)
        lock = open_regular(run_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
    except OSError as error:
        at = f"{error.filename or run_dir}: {error.strerror}"
        raise OperatorError(at, "name another one with --run-dir") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(lock, 32, 0).decode().strip()
            raise OperatorError(
                f"another atfnd (pid {pid}) already serves {run_dir / 'atfnd.sock'}",
                "stop it, or give this one its own --run-dir",
                exit_code=1,
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def run(
    nics: Sequence[str],
    arm: Sequence[str] = (),
    run_dir: Path = RUN_DIR,
    config: Path | None = None,
    observer: str | None = None,
) -> None:
    """Steer `nics` until SIGTERM or SIGINT. OperatorError before anything is changed."""
    _need_root()
    read = partial(load, config, trusting=False)
    policy = read()
    if not nics:
        raise OperatorError("no NIC to steer", "name one: --nic lab:lab (after `atfnd lab up`)")
    for name in arm:
        if name not in nics:
            raise OperatorError(f"--arm {name}: it is not among the NICs", f"add --nic {name}")
    given = Given(read, tuple(arm))

    with ExitStack() as stack:
        stack.enter_context(_alone(run_dir))
        interfaces = Interfaces(nics, NicWatch)
        stack.callback(interfaces.close)
        watches = interfaces.start()
        asked_types = asked(policy, topology())
        chosen, why = choose(observer or policy.observer, asked_types)
        stack.callback(chosen.close)
        journals = _journals(run_dir, stack)
        daemon = Supervisor(interfaces, chosen, why, policy, *journals, given)
        for name, refusal in interfaces.refused.items():
            daemon.log.add("refused", "not watched", refusal, nic=name)
        for trouble in _troubles(*journals):
            daemon.log.add("journal", trouble)
        faulthandler.enable()  # a watchdog's SIGABRT shows where the loop stood
        daemon.notify_by(Notify.of(os.environ, daemon.log))
        daemon.pace, daemon.guard_pace = Pace.of(os.environ), GuardPace.of(os.environ)
        journal, undo_journal, _ = journals
        try:
            asyncio.run(_until_stopped(daemon, watches, run_dir / "atfnd.sock"))
        finally:
            done = restored(journal, undo_journal) if daemon.restoring else []
            why = "atfnd stops, and the policy says on_stop: restore"
            for each in done:
                kind = "undo" if each.done else "refused"
                daemon.log.add(kind, f"{each.what} {each.left}", why, nic=each.nic)
        _say_refused(done)
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
        await daemon.run(watches, stop, server.stop)
    finally:
        await server.stop()
        signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)  # what follows is done to its end


def restore(run_dir: Path = RUN_DIR) -> None:
    """`atfnd restore`: delete every rule a stopped daemon left, put every setting back that is
    still as it left it, and nothing else. OperatorError at the end: something was refused."""
    _need_root()
    with _alone(run_dir), ExitStack() as stack:
        journal, undo_journal, operator_journal = _journals(run_dir, stack)
        for trouble in _troubles(journal, undo_journal, operator_journal):
            print(f"atfnd: {trouble}", file=sys.stderr)
        done = restored(journal, undo_journal)
        take_back(undo_journal)
        for each in done:
            print(each)
        if not done:
            print("nothing to restore")
    _say_refused(done)


def _say_refused(done: Sequence[Restored]) -> None:
    """OperatorError: something of ours is left."""
    refused = ", ".join(str(each) for each in done if not each.done)
    if refused:
        raise OperatorError(f"not restored: {refused}", "atfnd restore tries again", exit_code=1)


def _journals(
    run_dir: Path, stack: ExitStack
) -> tuple[FilterJournal, UndoJournal, OperatorJournal]:
    """Rules and settings of ours, and the operator's orders; closed with the stack. OperatorError:
    one cannot be written."""
    try:
        journal = FilterJournal(run_dir / "filters.journal")
        stack.callback(journal.close)
        undo_journal = UndoJournal(run_dir / "originals.journal")
        stack.callback(undo_journal.close)
        operator_journal = OperatorJournal(run_dir / "orders.journal")
        stack.callback(operator_journal.close)
    except OSError as refusal:
        what = f"{refusal.filename or run_dir}: {refusal.strerror}"
        raise OperatorError(what, "nothing is changed without a journal") from refusal
    return journal, undo_journal, operator_journal


def _troubles(*journals: FilterJournal | UndoJournal | OperatorJournal) -> Iterator[str]:
    """What of the journals could not be taken over."""
    for each in journals:
        if each.trouble is not None:
            yield each.trouble
