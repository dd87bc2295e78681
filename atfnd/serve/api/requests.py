# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every request, on whichever socket: how long it may take to arrive, how large it
may be, and how it is refused.

Every error is answered as `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from weakref import WeakSet

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from atfnd.errors import OperatorError
from atfnd.serve.api.answers import STREAMS, TURN, error
from atfnd.serve.api.route import Handler

__all__ = ["BODY_BYTES", "ELSEWHERE", "Pace", "answer_errors", "prepared", "read_body"]
__all__ += ["Few", "serving"]

READ_S = 10.0  # for the head of a request, its body, and between two requests
STOP_S = 2.0  # for requests under way when the daemon stops
BODY_BYTES = 4096
BUGS, BUGS_S = 5, 60.0  # tracebacks of requests that are logged in this time
ELSEWHERE = web.AppKey("ELSEWHERE", str)  # the hint for a request for something that is not there

Pace = Callable[[web.BaseRequest], AbstractAsyncContextManager[None]]


def prepared(app: web.Application, turn: asyncio.Lock, elsewhere: str) -> web.AppRunner:
    """A runner for `app`, whose long answers take turns by `turn`."""
    app[TURN], app[STREAMS], app[ELSEWHERE] = turn, WeakSet(), elsewhere
    app.on_shutdown.append(_end_streams)
    logger = logging.getLogger("atfnd.serve")
    logger.addFilter(_is_bug)
    logger.addFilter(_few)
    return web.AppRunner(
        app,
        access_log=None,
        logger=logger,
        keepalive_timeout=READ_S,
        lingering_time=1.0,
        shutdown_timeout=STOP_S,
        handler_cancellation=True,
    )


async def serving(runner: web.AppRunner, pace: Pace) -> web.Server:
    """The server of a `prepared` runner. Checks that come before a request is looked at are made
    here: each request is answered within its `pace`, and may not use `Expect`. (aiohttp answers
    `Expect` before every middleware, and does not survive one that is no text.)"""
    await runner.setup()
    server = runner.server
    assert server is not None
    answer = server.request_handler

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        async with pace(request):
            if request.headers.get("Expect", "100-continue").lower() != "100-continue":
                why = "nothing but 100-continue may be expected"
                refused = error(417, why, "leave out `Expect`")
                refused.force_close()
                return refused
            return await answer(request)

    server.request_handler = handle
    return server


class Few:
    """A filter of a log: at most so many records in so long; the next one has how many were left
    out."""

    def __init__(self, most: int, every_s: float) -> None:
        self._most, self._every_s = most, every_s
        self._since_s, self._said, self._left_out = time.monotonic(), 0, 0

    def __call__(self, record: logging.LogRecord) -> bool:
        now_s = time.monotonic()
        if now_s - self._since_s >= self._every_s:
            self._since_s, self._said = now_s, 0
        if self._said >= self._most:
            self._left_out += 1
            return False
        self._said += 1
        if self._left_out:
            record.msg = f"{record.getMessage()} ({self._left_out} more were not logged)"
            record.args, self._left_out = (), 0
        return True


_few = Few(BUGS, BUGS_S)


async def _end_streams(app: web.Application) -> None:
    for task in app[STREAMS]:
        task.cancel()


def _is_bug(record: logging.LogRecord) -> bool:
    """False for a client that sends something that is no HTTP, or goes away during an answer."""
    fault = record.exc_info[1] if record.exc_info else None
    return not isinstance(fault, HttpProcessingError | ConnectionError)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except OperatorError as mistake:
        return error(400, mistake.message, mistake.hint)
    except web.HTTPMethodNotAllowed as refusal:
        allowed = ", ".join(sorted(refusal.allowed_methods))
        answer = error(405, f"{request.path} does not take {request.method}", f"use {allowed}")
        answer.headers["Allow"] = allowed
        return answer
    except web.HTTPRequestEntityTooLarge:
        answer = error(413, f"the body is over {BODY_BYTES} bytes", "no request here takes a body")
        answer.force_close()
        return answer
    except web.HTTPNotFound as refusal:
        if refusal.content_type == "application/json":
            raise
        return error(404, f"nothing at {request.path}", request.app[ELSEWHERE])


@web.middleware
async def read_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    """No request takes a body; if one has a body, it is read to its end, within limits, and
    refused."""
    if request.can_read_body:
        try:
            async with asyncio.timeout(READ_S):
                body = await request.read()
        except TimeoutError:
            answer = error(408, f"the body did not come within {READ_S:.0f} s")
            answer.force_close()
            return answer
        if body:
            raise OperatorError("no request here takes a body", "send the request without one")
    return await handler(request)
