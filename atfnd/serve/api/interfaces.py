# SPDX-License-Identifier: GPL-2.0-or-later
"""The interface that a request names: found, or a 404 that lists those there are."""

from __future__ import annotations

from aiohttp import web

from atfnd.model import NicView
from atfnd.serve import Source
from atfnd.serve.api.answers import error
from atfnd.serve.api.route import JSON, Text

__all__ = ["NIC", "known", "named", "seen", "seen_all"]

NIC = Text("nic", "Only this interface.")


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


def named(source: Source, request: web.Request) -> str | None:
    """The one that the query names; None: all. HTTPNotFound: it is not watched."""
    name = NIC.of(request)
    return None if name is None else known(source, name)


def seen_all(source: Source, request: web.Request) -> list[NicView]:
    """The one that the query names, or all."""
    name = NIC.of(request)
    return list(source.nics()) if name is None else [seen(source, name)]
