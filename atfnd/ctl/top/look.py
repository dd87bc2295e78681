# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon answers at one moment. Reads its API."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atfnd.ctl.client import TIMEOUT_S, Client, Row

__all__ = ["Look", "Looks"]

PAGE = 1000  # of events: what a daemon retains


@dataclass(frozen=True, slots=True)
class Look:
    """Objects of the API, as docs/api.md has them."""

    status: Row
    flows: Sequence[Row]
    queues: Sequence[Row]
    cpu_time: Row
    events: Sequence[Row]  # since the look before


class Looks:
    """One after the other, at one daemon after the other."""

    def __init__(self, client: Client, nic: str | None) -> None:
        self._client, self._nic = client, nic
        self._since_wall_s: float | None = None
        self._after = 0

    def look(self) -> Look:
        """As things are now. OperatorError: the daemon does not answer, or refuses."""
        get, only = self._client.get, {} if self._nic is None else {"nic": self._nic}
        lines = self._client.lines("/v1/flows/stream", TIMEOUT_S, **only)
        return Look(
            status=get("/v1/status"),
            flows=[json.loads(line) for line in lines],
            queues=get("/v1/queues", **only)["queues"],
            cpu_time=get("/v1/cpu-time"),
            events=self._events(),
        )

    def _events(self) -> list[Row]:
        """A daemon that started again counts from 1."""
        page = self._page()
        if page["since_wall_s"] != self._since_wall_s and self._after:
            self._after = 0
            page = self._page()
        self._since_wall_s, self._after = page["since_wall_s"], page["next"]
        rows: list[Row] = page["events"]
        return [row for row in rows if self._nic in (None, row["nic"])]

    def _page(self) -> dict[str, Any]:
        return self._client.get("/v1/events", after=self._after, limit=PAGE)
