# SPDX-License-Identifier: GPL-2.0-or-later
"""The pace of each user's requests: a user that asks more waits, and nobody else does."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from atfnd.serve.api.answers import SPENT_S
from atfnd.serve.api.door import uid_of

__all__ = ["UserPace"]

EVERY_S = 0.02  # between two requests of a user, on average
AT_ONCE = 64  # requests of a user, after a rest
REST = 5.0  # times the time that a long answer took of the loop


class UserPace:
    """Each request of a user pays EVERY_S, and REST for what its answer took. One that is not paid
    for waits, on whichever connection. root's do not: it could stop us anyway."""

    def __init__(self) -> None:
        self._paid_s: dict[int, float] = {}  # by uid: until when its requests are paid for

    @asynccontextmanager
    async def __call__(self, request: web.BaseRequest) -> AsyncIterator[None]:
        uid = uid_of(request.transport)
        if uid is None or uid == 0:
            yield
            return
        await asyncio.sleep(self._pay(uid, EVERY_S) - time.monotonic())
        try:
            yield
        finally:
            self._pay(uid, REST * request.get(SPENT_S, 0.0))

    def _pay(self, uid: int, price_s: float) -> float:
        """Until when it has paid for now."""
        rested_s = time.monotonic() - AT_ONCE * EVERY_S
        self._paid_s = {each: at_s for each, at_s in self._paid_s.items() if at_s > rested_s}
        self._paid_s[uid] = max(self._paid_s.get(uid, -math.inf), rested_s) + price_s
        return self._paid_s[uid]
