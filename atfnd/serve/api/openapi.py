# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/openapi.yaml`: the description of the API for programs, made of its routes and the types
of their answers when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from types import GenericAlias
from typing import Any

import yaml
from aiohttp import web
from pydantic import ConfigDict, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from atfnd.serve.api.answers import RefusalShown
from atfnd.serve.api.route import JSON, Route

__all__ = ["Described", "document"]

ABOUT = (
    "HTTP/1.1 over the Unix socket /run/atfnd/atfnd.sock. Every process that may open it may read; "
    "requests that change anything (POST) are asked by root's processes only. Within /v1 fields "
    "and resources are added, never renamed or removed: a client ignores what it does not know. "
    '`null` means "not known". Units are in the names. docs/api.md says more of what things mean.'
)
REFUSED = (
    "400 a parameter is wrong, or the policy; 403 only root may; 404 no such path or interface; "
    "405 wrong method; 408 the body did not come in 10 s; 409 the daemon or the kernel refused; "
    "413 the body is over 4 KiB (no request takes one); 503 too many clients."
)
LICENCE = "GPL-2.0-or-later"
HEAD = {
    "openapi": "3.1.0",
    "info": {
        "title": "atfnd",
        "version": "1",
        "summary": "What atfnd does with the flows of this machine, and its few commands.",
        "description": ABOUT,
        "license": {"name": LICENCE, "identifier": LICENCE},
    },
    "servers": [
        {"url": "http://atfnd", "description": "Any host name works over the socket."},
    ],
    "tags": [
        {"name": "read", "description": "For every process that may open the socket."},
        {"name": "change", "description": "For root's processes only."},
    ],
}
AS_ANSWERED = ConfigDict(extra="forbid", use_attribute_docstrings=True)


class Described:
    """These routes, and one that describes them all."""

    def __init__(self, routes: Iterable[Route]) -> None:
        own = Route(
            "GET", "/v1/openapi.yaml", "openapi", self.openapi, str, kinds=("application/yaml",)
        )
        self.routes = [*routes, own]
        self._made: asyncio.Future[str] | None = None

    async def openapi(self, request: web.Request) -> web.StreamResponse:
        """This description: OpenAPI 3.1."""
        if self._made is None:  # it takes long: in a thread, and once
            self._made = asyncio.ensure_future(asyncio.to_thread(self._text))
        text = await asyncio.shield(self._made)
        return web.Response(text=text, content_type="application/yaml")

    def _text(self) -> str:
        return yaml.safe_dump(document(self.routes), sort_keys=False, width=100)


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    known = list(routes)
    answers = RefusalShown, *(route.answer for route in known)
    every: Any = GenericAlias(tuple, answers)
    made = TypeAdapter[Any](every, config=AS_ANSWERED).json_schema(
        schema_generator=_AsAnswered, ref_template="#/components/schemas/{model}"
    )
    for each in made["$defs"].values():
        each.pop("title")
        for part in (each, *each["properties"].values()):
            if "description" in part:
                part["description"] = " ".join(part["description"].split())
    refused, *schemas = made["prefixItems"]
    paths: dict[str, dict[str, Any]] = {}
    for route, schema in zip(known, schemas, strict=True):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema)
    refusal = {"description": REFUSED, "content": _content([JSON], refused)}
    components = {"responses": {"Refused": refusal}, "schemas": made["$defs"]}
    return {**HEAD, "paths": paths, "components": components}


def _operation(route: Route, schema: Mapping[str, Any]) -> dict[str, Any]:
    summary, more = route.words
    return {
        "operationId": route.name,
        "tags": ["read" if route.method == "GET" else "change"],
        "summary": summary,
        **({"description": more} if more else {}),
        "parameters": _parameters(route),
        "responses": {
            "200": {"description": HTTPStatus.OK.phrase, "content": _content(route.kinds, schema)},
            "default": {"$ref": "#/components/responses/Refused"},
        },
    }


def _parameters(route: Route) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    if "{nic}" in route.path:
        nic = {"name": "nic", "in": "path", "required": True}
        made.append({**nic, "schema": {"type": "string", "minLength": 1}})
    for each in route.takes:
        words = {"description": each.about, "example": each.example, "required": each.required}
        said = {key: value for key, value in words.items() if value}
        made.append({"name": each.name, "in": each.where, **said, "schema": each.schema})
    return made


def _content(kinds: Iterable[str], schema: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: {"schema": dict(schema)} for kind in kinds}


class _AsAnswered(GenerateJsonSchema):
    """`FlowShown` is Flow to the reader, and a name is no title."""

    def normalize_name(self, name: str) -> str:
        return super().normalize_name(name).removesuffix("Shown")

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False
