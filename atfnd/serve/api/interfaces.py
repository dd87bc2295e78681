# SPDX-License-Identifier: GPL-2.0-or-later
"""The interface that a request names: found, or a 404 that lists those there are."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from atfnd.model import NicView
from atfnd.serve import Source
from atfnd.serve.api.answers import JSON, error

__all__ = ["known", "seen", "seen_all"]


def known(source: Source, name: str) -> str:
    """Its name. HTTPNotFound: it is not watched."""
    names = source.names()
    if name in names:
        return name
    there = ", ".join(names) or "none"
    body = error(404, f"no such interface: {name}", f"interfaces atfnd watches: {there}")
    raise web.HTTPNotFound(text=body.text, content_type=JSON)


def seen(source: Source, name: str) -> NicView:
    """As it is now. HTTPNotFound: it is not watched, or has just gone."""
    for nic in source.nics():
        if nic.name == name:
            return nic
    known(source, name)
    body = error(404, f"{name} has just gone", "see `atfnctl events`")
    raise web.HTTPNotFound(text=body.text, content_type=JSON)


def seen_all(source: Source, query: Mapping[str, str]) -> list[NicView]:
    """The one that `nic` names, or all."""
    return [seen(source, query["nic"])] if "nic" in query else list(source.nics())
