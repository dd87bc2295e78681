# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd restore`: undo by the journals of a run directory, and the journals themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from atfnd.cli.run_dir import alone, need_root
from atfnd.errors import OperatorError
from atfnd.model import Restored
from atfnd.program.journals.filter_journal import FilterJournal
from atfnd.program.journals.operator_journal import OperatorJournal
from atfnd.program.journals.undo_journal import UndoJournal
from atfnd.program.restore import restored, take_back

__all__ = ["opened", "restore", "say_refused", "troubles"]


def restore(run_dir: Path) -> None:
    """`atfnd restore`: delete every rule a stopped daemon left, put every setting back that is
    still as it left it, and nothing else. OperatorError at the end: something was refused."""
    need_root()
    with alone(run_dir), ExitStack() as stack:
        journal, undo_journal, operator_journal = opened(run_dir, stack)
        for trouble in troubles(journal, undo_journal, operator_journal):
            print(f"atfnd: {trouble}", file=sys.stderr)
        done = restored(journal, undo_journal)
        take_back(undo_journal)
        for each in done:
            print(each)
        if not done:
            print("nothing to restore")
    say_refused(done)


def say_refused(done: Sequence[Restored]) -> None:
    """OperatorError: something of ours is left."""
    refused = ", ".join(str(each) for each in done if not each.done)
    if refused:
        raise OperatorError(f"not restored: {refused}", "atfnd restore tries again", exit_code=1)


def opened(run_dir: Path, stack: ExitStack) -> tuple[FilterJournal, UndoJournal, OperatorJournal]:
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


def troubles(*journals: FilterJournal | UndoJournal | OperatorJournal) -> Iterator[str]:
    """What of the journals could not be taken over."""
    for each in journals:
        if each.trouble is not None:
            yield each.trouble
