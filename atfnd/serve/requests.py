# SPDX-License-Identifier: GPL-2.0-or-later
"""What holds for every request, whichever socket it came by: how long it may take to be sent, how
much, and how it is refused.

Every error is answered as `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from weakref import WeakSet

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from atfnd.errors import OperatorError
from atfnd.serve.answers import STREAMS, TURN, error

__all__ = ["BODY_BYTES", "ELSEWHERE", "Handler", "answer_errors", "prepared", "read_body"]

READ_S = 10.0  # for the head of a request, its body, and between two requests
STOP_S = 2.0  # for requests under way when the daemon stops
BODY_BYTES = 4096
ELSEWHERE = web.AppKey("ELSEWHERE", str)  # the hint for who asks for what is not there

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def prepared(app: web.Application, turn: asyncio.Lock, elsewhere: str) -> web.AppRunner:
    """A runner for `app`, whose long answers take turns by `turn`."""
    app[TURN], app[STREAMS], app[ELSEWHERE] = turn, WeakSet(), elsewhere
    app.on_shutdown.append(_end_streams)
    logger = logging.getLogger("atfnd.serve")
    logger.addFilter(_is_bug)
    return web.AppRunner(
        app,
        access_log=None,
        logger=logger,
        keepalive_timeout=READ_S,
        lingering_time=1.0,
        shutdown_timeout=STOP_S,
        handler_cancellation=True,
    )


async def _end_streams(app: web.Application) -> None:
    for task in app[STREAMS]:
        task.cancel()


def _is_bug(record: logging.LogRecord) -> bool:
    """Not that a client sends what is no HTTP, or goes away in the middle of an answer."""
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
    """No request takes a body; one that has one is read to its end, within limits, and refused."""
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
