# SPDX-License-Identifier: GPL-2.0-or-later
"""One frame for a pipe, or a script: figures once their rates are known."""

from __future__ import annotations

import time

from atfnd.ctl.top.figures import Figures, Series
from atfnd.ctl.top.look import Looks

__all__ = ["figures_once"]

_MOST_S = 5.0  # the bytes of flows are read every 2 s; in a big table less often


def figures_once(looks: Looks, interval_s: float) -> Figures:
    """The figures of as many looks as it takes until every rate is known, or until it takes too
    long. OperatorError: the daemon does not answer, or refuses."""
    series, end_s = Series(), time.monotonic() + _MOST_S
    while not (figures := series.see(looks.look())).known() and time.monotonic() < end_s:
        time.sleep(interval_s)
    return figures
