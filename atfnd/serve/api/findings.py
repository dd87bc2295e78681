# SPDX-License-Identifier: GPL-2.0-or-later
"""What `atfnd doctor` and `atfnctl doctor` show, as JSON objects (docs/api.md). Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

from typing_extensions import TypedDict

from atfnd.model import Finding, Level, NicView
from atfnd.serve.api.nic_views import NicShown, nic_view
from atfnd.serve.api.values import shown, words

__all__ = ["Diagnosis", "FindingShown", "doctor_view", "finding_view", "in_the_way"]

_IN_THE_WAY = Level.BLOCKER, Level.WARNING


class FindingShown(TypedDict):
    """One thing that prevents steering, or helps it."""

    nic: str | None
    level: Annotated[str, words(Level)]
    what: str
    advice: str | None


class Diagnosis(TypedDict):
    """What atfnd can do, what prevents it, and what to do."""

    nics: list[NicShown]
    findings: list[FindingShown]
    clear: bool
    """There is no warning and no blocker."""


def doctor_view(nics: Iterable[NicView], findings: Sequence[Finding]) -> Diagnosis:
    """What `atfnd doctor` and `atfnctl doctor` show."""
    return {
        "nics": [nic_view(nic) for nic in nics],
        "findings": [finding_view(finding) for finding in findings],
        "clear": not in_the_way(findings),
    }


def in_the_way(findings: Sequence[Finding]) -> list[Finding]:
    """Those that hinder steering, worst first."""
    found = [each for each in findings if each.level in _IN_THE_WAY]
    return sorted(found, key=lambda each: _IN_THE_WAY.index(each.level))


def finding_view(finding: Finding) -> FindingShown:
    """One of them."""
    return shown(FindingShown, finding)
