# SPDX-License-Identifier: GPL-2.0-or-later
"""What `atfnctl plan --json` prints, and typing it."""

from __future__ import annotations

from tests.bed import Bed
from tests.guest.simlab import sh

__all__ = ["plan", "typed"]


def plan(bed: Bed) -> list[dict[str, object]]:
    actions: list[dict[str, object]] = bed.daemon.get("/v1/plan")["actions"]
    return actions


def typed(actions: list[dict[str, object]]) -> None:
    """As an admin would, in this order."""
    for action in actions:
        assert isinstance(action["commands"], list)
        for command in action["commands"]:
            sh("bash", "-c", command)
