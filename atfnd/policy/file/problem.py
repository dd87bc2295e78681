# SPDX-License-Identifier: GPL-2.0-or-later
"""What is wrong in a policy file: where, which words, and what was probably meant."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from atfnd.errors import OperatorError

__all__ = ["Mistake", "PolicyError", "Problem", "did_you_mean", "printable", "said"]


class Mistake(ValueError):
    """A value that cannot be meant; raised where it is parsed, and given its place by the
    caller."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Problem(NamedTuple):
    """One mistake at one place; lines and columns count from 1, None is "the file as a whole"."""

    file: str
    line: int | None
    column: int | None
    width: int  # characters to underline
    excerpt: str | None  # the source line
    message: str
    hint: str | None

    def __str__(self) -> str:
        """`file:line:column: message`, the source line, a caret under the place, and the hint."""
        place = [self.file, *(str(n) for n in (self.line, self.column) if n is not None)]
        lines = [f"{':'.join(place)}: {printable(self.message)}"]
        if self.excerpt is not None and self.column is not None:
            indent = re.sub(r"[^\t]", " ", self.excerpt[: self.column - 1])
            lines += [f"    {printable(self.excerpt)}", f"    {indent}{'^' * self.width}"]
        if self.hint is not None:
            lines.append(f"    hint: {printable(self.hint)}")
        return "\n".join(lines)


class PolicyError(OperatorError):
    """Every problem of every file at once; nothing of such a policy is used."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        count = "1 error" if len(problems) == 1 else f"{len(problems)} errors"
        super().__init__("\n".join([f"{count} in the policy", *map(str, problems)]))
        self.problems = tuple(problems)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint naming the known word closest to `word`, if one is close."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f"did you mean {by_lower[near[0]]}?" if near else None


def said(value: object) -> str:
    """A decoded YAML value in an operator's words."""
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case tuple():
            return "a list"
        case bool():
            return f"`{str(value).lower()}`"
        case _:
            return f"`{value}`"


def printable(text: str) -> str:
    """A file's words must not steer the operator's terminal."""
    return "".join(c if c.isprintable() or c == "\t" else "?" for c in text)
