# SPDX-License-Identifier: GPL-2.0-or-later
"""Requests and answers of the API: a query's parameters, JSON objects, lists of rows.

Long lists are written row by row: one large json.dumps would hold the daemon's loop.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.serve.views import View

__all__ = ["JSON", "error", "number", "one_object", "query_of", "row_list", "write"]

ROWS = 16  # rows encoded before the loop has its turn
WRITE_S = 10.0  # a reader that takes nothing for so long is let go
JSON = "application/json"


def error(status: int, message: str, hint: str | None = None) -> web.Response:
    """`{"error": ..., "hint": ...}`."""
    body = json.dumps({"error": message, "hint": hint}) + "\n"
    return web.Response(status=status, text=body, content_type=JSON)


def query_of(request: web.Request, *known: str) -> dict[str, str]:
    """The query, or OperatorError for a parameter that is unknown, repeated or empty."""
    query: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            takes = ", ".join(known) or "no parameters"
            raise OperatorError(f"unknown parameter: {name}", f"{request.path} takes {takes}")
        if name in query or not value:
            fault = "empty" if not value else "given twice"
            raise OperatorError(f"parameter {name} is {fault}")
        query[name] = value
    return query


def number(
    query: Mapping[str, str], name: str, default: int, low: int, high: int = 2**63 - 1
) -> int:
    """One whole number of the query, or OperatorError."""
    text = query.get(name)
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
        raise OperatorError(f"{name}={text}: not a whole number")
    if not low <= int(text) <= high:
        raise OperatorError(f"{name}={text}: not between {low} and {high}")
    return int(text)


def one_object(view: Mapping[str, object]) -> web.Response:
    """`{...}`."""
    return web.Response(text=json.dumps(view) + "\n", content_type=JSON)


async def row_list(
    request: web.Request, name: str, rows: Iterable[View], **rest: object
) -> web.StreamResponse:
    """`{name: [...], **rest}`, one row a line."""
    response = web.StreamResponse(headers={"Content-Type": JSON})
    await response.prepare(request)
    chunk, first = [f'{{"{name}": ['], True
    for row in rows:
        chunk.append(("\n" if first else ",\n") + json.dumps(row))
        first = False
        if len(chunk) >= ROWS:
            await write(request, response, "".join(chunk))
            chunk = []
    chunk.append("]" + "".join(f', "{key}": {json.dumps(value)}' for key, value in rest.items()))
    await write(request, response, "".join([*chunk, "}\n"]))
    await response.write_eof()
    return response


async def write(request: web.Request, response: web.StreamResponse, text: str) -> None:
    """Part of an answer. ConnectionResetError: the reader went away, or took nothing for long."""
    try:
        async with asyncio.timeout(WRITE_S):
            await response.write(text.encode())
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the reader takes nothing") from None
    await asyncio.sleep(0)
