# SPDX-License-Identifier: GPL-2.0-or-later
"""Answers of the API: JSON objects, lists of rows, refusals.

Long answers are made in slices, and one answer takes one slice in a round of the daemon's loop:
other work on the loop waits for one slice at most, however many flows and readers there are.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import TypeVar
from weakref import WeakSet

from aiohttp import web
from typing_extensions import TypedDict

from atfnd.serve.api.route import JSON, LINES

__all__ = ["SPENT_S", "STREAMS", "TURN", "RefusalShown"]
__all__ += ["error", "line_stream", "one_object", "row_list", "row_list_in", "slices", "streaming"]
__all__ += ["write"]

SLICE_S = 0.0005  # of the loop's time
WRITE_S = 10.0  # a reader that takes nothing for this long is dropped
TURN = web.AppKey("TURN", asyncio.Lock)
SPENT_S = web.RequestKey("SPENT_S", float)  # of a request: of the loop's time, for its slices
STREAMS = web.AppKey("STREAMS", WeakSet[asyncio.Task[object]])  # answers that end with the server

T = TypeVar("T")
Row = Mapping[str, object]


class RefusalShown(TypedDict):
    """Why a request is refused."""

    error: str
    hint: str | None
    """What to do."""


def error(status: int, message: str, hint: str | None = None) -> web.Response:
    """A RefusalShown."""
    said: RefusalShown = {"error": message, "hint": hint}
    body = json.dumps(said) + "\n"
    return web.Response(status=status, text=body, content_type=JSON)


def one_object(view: Row) -> web.Response:
    """`{...}`."""
    return web.Response(text=json.dumps(view) + "\n", content_type=JSON)


async def slices(request: web.Request, rows: Iterable[T | None]) -> AsyncGenerator[list[T], None]:
    """Rows, a slice at a time; None is a step without one. After each slice the answer leaves the
    loop alone for as long as the slice took, so that the daemon keeps half of its time."""
    steps, more = iter(rows), True
    while more:
        async with request.app[TURN]:
            part: list[T] = []
            began_s = time.perf_counter()
            more = False
            for row in steps:
                if row is not None:
                    part.append(row)
                if time.perf_counter() - began_s > SLICE_S:
                    more = True
                    break
            took_s = time.perf_counter() - began_s
            request[SPENT_S] = request.get(SPENT_S, 0.0) + took_s
            await asyncio.sleep(took_s if more else 0)
        yield part


async def row_list(
    request: web.Request,
    name: str,
    rows: Iterable[Row | None],
    rest: Callable[[], Row] = dict,
) -> web.StreamResponse:
    """`{name: [...], **rest}`, one row a line; `rest` is asked for after the last row."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    await response.prepare(request)
    return await row_list_in(request, response, name, rows, rest)


async def row_list_in(
    request: web.Request,
    response: web.StreamResponse,
    name: str,
    rows: Iterable[Row | None],
    rest: Callable[[], Row] = dict,
) -> web.StreamResponse:
    """As `row_list`, in an answer that has begun."""
    before = f'{{"{name}": [\n'
    async for part in slices(request, (row if row is None else json.dumps(row) for row in rows)):
        if part:
            await write(request, response, before + ",\n".join(part))
            before = ",\n"
    opening = f'{{"{name}": [' if before[0] == "{" else ""
    ends = "".join(f', "{key}": {json.dumps(value)}' for key, value in rest().items())
    await write(request, response, f"{opening}]{ends}}}\n")
    await response.write_eof()
    return response


async def line_stream(request: web.Request, rows: Iterable[Row | None]) -> web.StreamResponse:
    """One row a line, and nothing around the rows."""
    response = web.StreamResponse(headers={"Content-Type": LINES})
    await response.prepare(request)
    async for part in slices(request, (row if row is None else json.dumps(row) for row in rows)):
        if part:
            await write(request, response, "\n".join(part) + "\n")
    await response.write_eof()
    return response


async def streaming(request: web.Request, content_type: str) -> web.StreamResponse:
    """The beginning of an answer without a foreseeable end; it ends when the server stops."""
    task = asyncio.current_task()
    assert task is not None
    request.app[STREAMS].add(task)
    headers = {"Content-Type": content_type, "Cache-Control": "no-store"}
    response = web.StreamResponse(headers=headers)
    await response.prepare(request)
    return response


async def write(request: web.Request, response: web.StreamResponse, text: str) -> None:
    """Write a part of an answer. ConnectionResetError: the reader went away, or took nothing for
    long."""
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write(text.encode())
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader takes nothing") from None
    await asyncio.sleep(0)
