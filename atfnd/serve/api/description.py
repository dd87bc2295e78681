# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/openapi.yaml`: the description of the API for programs (openapi.yaml, beside this)."""

from __future__ import annotations

from pathlib import Path

from aiohttp import web

from atfnd.serve import Source
from atfnd.serve.api.answers import query_of

__all__ = ["FILE", "Description"]

FILE = Path(__file__).with_name("openapi.yaml")


class Description:
    """One handler; it does not need the source."""

    def __init__(self, source: Source) -> None:
        del source
        self._text = FILE.read_text(encoding="utf-8")

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/openapi.yaml", self.openapi, allow_head=False)]

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        query_of(request)
        return web.Response(text=self._text, content_type="application/yaml")
