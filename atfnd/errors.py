# SPDX-License-Identifier: GPL-2.0-or-later
"""An operator's mistake, or a machine that cannot do what was asked: one clear line, never a trace;
and a kernel's refusals that are answers.

Exit codes (design, section 7): 1 refused or "no", 2 usage or bad input, 3 daemon unreachable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

__all__ = ["OperatorError", "refusable", "reported"]


class OperatorError(Exception):
    """Printed as `atfnd: message` and, when there is one, `hint: ...`; then exit `exit_code`."""

    def __init__(self, message: str, hint: str | None = None, exit_code: int = 2) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def tell(self, program: str) -> int:
        """Print it on stderr as `program` and return the exit code."""
        print(f"{program}: {self}", file=sys.stderr)
        if self.hint is not None:
            print(f"hint: {self.hint}", file=sys.stderr)
        return self.exit_code


class refusable(AbstractContextManager[None]):
    """If the kernel refuses what is in the block with one of these errnos, the block ends there."""

    def __init__(self, *codes: int) -> None:
        self._codes = codes

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        return isinstance(error, OSError) and error.errno in self._codes


def reported(program: str, command: Callable[[], object]) -> None:
    """Run a command; if it raises OperatorError, print that and exit with its code."""
    try:
        command()
    except OperatorError as error:
        sys.exit(error.tell(program))
