# SPDX-License-Identifier: GPL-2.0-or-later
"""How a bench or the demo ends: whatever it put up is taken down, then one line and an exit code.

The first SIGINT, SIGTERM or SIGHUP unwinds every `with`; later ones wait until that is done.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from types import FrameType

from atfnd.errors import OperatorError

__all__ = ["ended_in_order"]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class _Ended(BaseException):
    """A signal told us to stop; not an Exception, so nothing below takes it for a failure."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


def _end(signum: int, frame: FrameType | None) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise _Ended(signum)


@contextlib.contextmanager
def ended_in_order() -> Iterator[None]:
    """Exit 128 + signal after a signal, and with an OperatorError's own code after one."""
    before = {signum: signal.signal(signum, _end) for signum in SIGNALS}
    try:
        yield
    except _Ended as ended:
        print(f"stopped by {signal.Signals(ended.signum).name}", file=sys.stderr)
        raise SystemExit(128 + ended.signum) from None
    except OperatorError as error:
        print(f"atfnd: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
