# SPDX-License-Identifier: GPL-2.0-or-later
"""What tells an engine how a NIC is and how it stands."""

from __future__ import annotations

from atfnd.engine.event import Event, MethodDue, NicAttached, SettingsLeftAlone
from atfnd.model import NicView

__all__ = ["like"]


def like(view: NicView) -> tuple[Event, ...]:
    """A NIC with these facts, armed or not, with these settings left alone. How it is steered
    follows from that."""
    return (
        NicAttached(view, armed=view.armed),
        SettingsLeftAlone(view.name, view.manual),
        MethodDue(view.name),
    )
