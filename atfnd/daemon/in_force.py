# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy that holds now."""

from __future__ import annotations

from dataclasses import dataclass

from atfnd.model import Policy

__all__ = ["InForce"]


@dataclass
class InForce:
    """Changed by `PolicyReload` alone."""

    policy: Policy
    refused: str = ""  # why the last reload was refused, if it was
