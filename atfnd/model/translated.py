# SPDX-License-Identifier: GPL-2.0-or-later
"""Connections that this machine forwards under other addresses or ports (NAT)."""

from __future__ import annotations

from typing import NamedTuple

from atfnd.model.flow import FlowKey

__all__ = ["TranslatedFlow"]


class TranslatedFlow(NamedTuple):
    """Its packets as they come in: of who opened it, and of the answers. Bytes as IP counts them,
    since it was opened; None: they are not counted."""

    original: FlowKey
    reply: FlowKey
    original_bytes: int | None
    reply_bytes: int | None

    @property
    def bytes(self) -> int | None:
        """Of both directions."""
        if self.original_bytes is None or self.reply_bytes is None:
            return None
        return self.original_bytes + self.reply_bytes
