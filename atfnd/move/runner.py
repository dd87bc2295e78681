# SPDX-License-Identifier: GPL-2.0-or-later
"""Carries out a scheduled plan, one action after the other, and reports every outcome."""

from __future__ import annotations

from collections.abc import Callable

from atfnd.model import Action, Outcome, Plan
from atfnd.move.immediate import schedule

__all__ = ["run"]


def run(plan: Plan, apply: Callable[[Action], Outcome]) -> list[Outcome]:
    """Apply `plan` through `apply` (program.apply); a refusal does not stop the rest."""
    return [apply(action) for action in schedule(plan)]
