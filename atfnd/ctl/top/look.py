# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon answers at one moment. Reads its API.

Reading the whole table costs the daemon time, and its figures change only with the audits, which
are rare where it is big: so it is not read at every look.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atfnd.ctl.client import Client, Row

__all__ = ["Look", "Looks"]

PAGE = 1000  # of events: what a daemon retains


@dataclass(frozen=True, slots=True)
class Look:
    """Objects of the API, as docs/api.md has them."""

    status: Row
    flows: Sequence[Row]  # the same object where they were not read again
    flows_age_s: float
    queues: Sequence[Row]
    cpu_time: Row
    events: Sequence[Row]  # since the look before
    pairs: Row | None = None  # what was forwarded lately; None: not asked for


class Looks:
    """One after the other, at one daemon after the other."""

    def __init__(
        self,
        client: Client,
        nic: str | None,
        flows_share: float = 0.1,
        unsteered: bool = False,
    ) -> None:
        """`flows_share` is of the time, for reading the table."""
        self._client, self._nic, self._share = client, nic, flows_share
        self._since_wall_s: float | None = None
        self._after = 0
        self.forwarded = False  # asked for what is forwarded, too, from the next look on
        self.unsteered = unsteered  # asked for flows without an entry, too
        self._flows: list[Row] = []
        self._asked: tuple[float, bool] | None = None  # of which daemon they are, and which
        self._flows_at_s, self._flows_due_s = 0.0, 0.0

    def look(self) -> Look:
        """As things are now. OperatorError: the daemon does not answer, or refuses."""
        get, only = self._client.get, {} if self._nic is None else {"nic": self._nic}
        status = get("/v1/status")
        asked = status["since_wall_s"], self.unsteered
        if time.monotonic() >= self._flows_due_s or asked != self._asked:
            self._read_flows(**only, all=int(self.unsteered))
            self._asked = asked
        return Look(
            status=status,
            flows=self._flows,
            flows_age_s=time.monotonic() - self._flows_at_s,
            queues=get("/v1/queues", **only)["queues"],
            cpu_time=get("/v1/cpu-time"),
            events=self._events(),
            pairs=get("/v1/pairs/latest", **only) if self.forwarded else None,
        )

    def _read_flows(self, **only: object) -> None:
        began_s = time.monotonic()
        self._flows = list(self._client.flows(**only))
        self._flows_at_s = time.monotonic()
        self._flows_due_s = began_s + (self._flows_at_s - began_s) / self._share

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
