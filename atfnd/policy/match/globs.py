# SPDX-License-Identifier: GPL-2.0-or-later
"""Lists of globs on names, as a policy has them (fnmatch(3) without flags: `*` also stands for
`/`). Pure.

A glob that begins with `!` excludes. A name is met if some glob matches it and no glob excludes it.
If all globs exclude, every other name is met.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence

__all__ = ["EXCLUDES", "listed", "meets_all", "meets_one", "sides"]

EXCLUDES = "!"


def listed(text: str) -> tuple[str, ...]:
    """The globs of a text, which are joined by `|`, without the blanks around them."""
    globs = (glob.strip() for glob in text.split("|"))
    return tuple(
        EXCLUDES + glob[1:].strip() if glob.startswith(EXCLUDES) else glob for glob in globs
    )


def sides(globs: Iterable[str]) -> tuple[list[str], list[str]]:
    """The globs that include, and those that exclude, without their `!`."""
    include, exclude = list[str](), list[str]()
    for glob in globs:
        if glob.startswith(EXCLUDES):
            exclude.append(glob[1:])
        else:
            include.append(glob)
    return include, exclude


def meets_one(globs: Sequence[str]) -> Callable[[str], object]:
    """Whether a name is met."""
    include, exclude = sides(globs)
    but = f"(?!{_any(exclude)})" if exclude else ""
    return re.compile(f"{but}(?:{_any(include)})").match


def meets_all(globs: Sequence[str]) -> Callable[[Iterable[str]], bool]:
    """Whether something with several names, or with none, is met: some glob matches one of them,
    and no glob excludes any."""
    include, exclude = sides(globs)
    included, excluded = (re.compile(_any(each)).match for each in (include, exclude))

    def met(names: Iterable[str]) -> bool:
        every = [*names]
        if exclude and any(map(excluded, every)):
            return False
        return not include or any(map(included, every))

    return met


def _any(globs: Iterable[str]) -> str:
    """Matches what one of the globs matches; without globs, everything."""
    return "|".join(map(fnmatch.translate, globs))
