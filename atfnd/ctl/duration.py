# SPDX-License-Identifier: GPL-2.0-or-later
"""How long something is to take, as an operator writes it: `90s`, `10m`, `2h`."""

from __future__ import annotations

import re

from atfnd.errors import OperatorError

__all__ = ["seconds_of"]

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def seconds_of(text: str) -> int:
    """Without a unit it is seconds. OperatorError: it is no time."""
    found = re.fullmatch(r"([0-9]{1,6})([smhd]?)", text)
    if found is None:
        raise OperatorError(f"{text!r} is no time", "whole numbers, as 90s, 10m, 2h")
    return int(found[1]) * _UNITS[found[2]]
