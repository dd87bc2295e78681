# SPDX-License-Identifier: GPL-2.0-or-later
"""A resource of the API: its path, the parameters that it takes, and the type of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, NamedTuple

from aiohttp import web

from atfnd.errors import OperatorError

__all__ = ["JSON", "LINES", "QUERY", "Handler", "Route", "Text", "Whole", "query_of"]

JSON, LINES = "application/json", "application/x-ndjson"
MOST = 2**53 - 1  # every reader of JSON has these numbers exactly
QUERY = web.RequestKey("QUERY", dict[str, str])

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Text(NamedTuple):
    """A parameter that is a text."""

    name: str
    about: str = ""
    required: bool = False
    example: str | None = None
    where: str = "query"
    bounds: Mapping[str, Any] = MappingProxyType({"minLength": 1})  # a JSON Schema

    def of(self, request: web.Request) -> str | None:
        """None: it is not given."""
        return request[QUERY].get(self.name)

    @property
    def schema(self) -> dict[str, Any]:
        """A JSON Schema (2020-12)."""
        return {"type": "string", **self.bounds}


class Whole(NamedTuple):
    """A parameter of the query that is a whole number."""

    name: str
    low: int
    high: int = MOST
    default: int | None = None
    about: str = ""
    required: bool = False
    example: str | None = None
    where: str = "query"

    def of(self, request: web.Request) -> int:
        """As `given`, else the default."""
        found = self.given(request)
        if found is not None:
            return found
        assert self.default is not None
        return self.default

    def given(self, request: web.Request) -> int | None:
        """None: it is not given. OperatorError: it is no whole number, or out of its bounds."""
        text = request[QUERY].get(self.name)
        if text is None:
            return None
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 19):
            raise OperatorError(f"{self.name}={text}: not a whole number")
        if not self.low <= int(text) <= self.high:
            raise OperatorError(f"{self.name}={text}: not between {self.low} and {self.high}")
        return int(text)

    @property
    def schema(self) -> dict[str, Any]:
        """A JSON Schema (2020-12)."""
        default = {} if self.default is None else {"default": self.default}
        return {"type": "integer", "minimum": self.low, "maximum": self.high, **default}


class Route(NamedTuple):
    """What `path` answers. It is made by `handler`, whose docstring says what it is for users, and
    which finds the parameters by their `of`."""

    method: str
    path: str
    name: str  # of the operation, in the description of the API
    handler: Handler
    answer: Any  # the type of the body, or of each line of it; `str`: text
    takes: Sequence[Text | Whole] = ()
    kinds: Sequence[str] = (JSON,)  # of content

    @property
    def words(self) -> tuple[str, str]:
        """A summary, and what else there is to say."""
        summary, _, more = cleandoc(self.handler.__doc__ or "").partition("\n\n")
        return " ".join(summary.split()), " ".join(more.split())

    def served(self) -> web.RouteDef:
        """As aiohttp takes it."""

        async def answer(request: web.Request) -> web.StreamResponse:
            request[QUERY] = query_of(request, self.takes)
            return await self.handler(request)

        allow = {"allow_head": False} if self.method == "GET" else {}
        return web.RouteDef(self.method, self.path, answer, allow)


def query_of(request: web.Request, takes: Iterable[Text | Whole] = ()) -> dict[str, str]:
    """The query, or OperatorError for a parameter that is unknown, repeated or empty."""
    known = [each.name for each in takes if each.where == "query"]
    query: dict[str, str] = {}
    for name, value in request.query.items():
        if name not in known:
            listed = ", ".join(known) or "no parameters"
            raise OperatorError(f"unknown parameter: {name}", f"{request.path} takes {listed}")
        if name in query or not value:
            fault = "empty" if not value else "given twice"
            raise OperatorError(f"parameter {name} is {fault}")
        query[name] = value
    return query
