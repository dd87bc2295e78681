# SPDX-License-Identifier: GPL-2.0-or-later
"""What moves and findings come to, in one line of words."""

from __future__ import annotations

from typing import Any

import pytest

from atfnd.ctl.tables import moves, summed

__all__: list[str] = []


def ends(*counted: tuple[int, str, str], late: int = 0) -> dict[str, Any]:
    rows = [{"count": n, "mechanism": means, "verdict": how} for n, means, how in counted]
    return {"moves": rows, "late_packets": late}


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (ends(), "0 in order, 0 postponed, 0 reordered"),
        (
            ends((20, "hold", "proven"), (15, "birth", "proven"), (197, "none", "deferred")),
            "35 in order (20 by hold, 15 by birth), 197 postponed, 0 reordered",
        ),
        (
            ends((3, "gap", "verified"), (4, "gap", "quiet"), (5, "none", "done")),
            "12 in order (7 by gap), 0 postponed, 0 reordered",
        ),
        (
            ends((1, "gap", "violated"), (2, "hold", "unproven"), (9, "none", "refused"), late=6),
            "0 in order, 0 postponed, 1 reordered (6 packets late), 9 refused, 2 not proven",
        ),
    ],
)
def test_moves_by_how_they_ended(status: dict[str, Any], said: str) -> None:
    assert moves(status) == said


@pytest.mark.parametrize(
    ("levels", "said"),
    [
        ("ok note", "0 warnings, 0 blockers"),
        ("warning ok", "1 warning, 0 blockers"),
        ("warning warning", "2 warnings, 0 blockers"),
        ("blocker", "0 warnings, 1 blocker: nothing can be steered before these are removed"),
    ],
)
def test_findings_by_how_much_they_matter(levels: str, said: str) -> None:
    assert summed([{"level": level} for level in levels.split()]) == said
