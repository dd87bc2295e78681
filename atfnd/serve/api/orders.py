# SPDX-License-Identifier: GPL-2.0-or-later
"""The orders of an operator: `POST /v1/nics/{nic}/...` and `/v1/disarm` (docs/api.md)."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web
from typing_extensions import TypedDict

from atfnd.errors import OperatorError
from atfnd.model import Restored
from atfnd.serve import Source
from atfnd.serve.api.answers import error, one_object
from atfnd.serve.api.interfaces import known, seen
from atfnd.serve.api.route import Route
from atfnd.serve.api.values import shown

__all__ = ["Orders", "kernel_refused"]


class OrderedShown(TypedDict):
    """How the interface stands now."""

    nic: str
    armed: bool
    paused: bool


class PutBackShown(TypedDict):
    """The result for one change of ours."""

    what: str
    """A setting, a filter, or all filters."""
    done: bool
    errno: str | None
    """The error of the kernel's refusal."""
    left: str
    """What is there now."""


class RestoredShown(OrderedShown):
    """It is done, or as much of it as the kernel allowed."""

    restored: list[PutBackShown]
    clear: bool
    """Nothing of ours is left, and our settings read as before."""


class ArmedShown(TypedDict):
    """The interfaces that are still armed."""

    armed: list[str]


class Orders:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        one = (
            ("arm", self.arm, OrderedShown), ("disarm", self.disarm, OrderedShown),
            ("pause", self.pause, OrderedShown), ("resume", self.resume, OrderedShown),
            ("restore", self.restore, RestoredShown),
        )  # fmt: skip
        every = Route("POST", "/v1/disarm", "disarmAll", self.disarm_all, ArmedShown)
        named = (
            Route("POST", f"/v1/nics/{{nic}}/{verb}", verb, handler, answer)
            for verb, handler, answer in one
        )
        return [*named, every]

    async def arm(self, request: web.Request) -> web.StreamResponse:
        """Allow atfnd to change this interface."""
        return await self._ordered(request, "arm", self._source.arm)

    async def disarm(self, request: web.Request) -> web.StreamResponse:
        """Stop every change of this interface at once; filters stay."""
        return await self._ordered(request, "disarm", self._source.disarm)

    async def pause(self, request: web.Request) -> web.StreamResponse:
        """Delete our filters and restore settings, until `resume`."""
        return await self._ordered(request, "pause", self._source.pause)

    async def resume(self, request: web.Request) -> web.StreamResponse:
        """End a pause and steer again if armed; set again what another program changed."""
        return await self._ordered(request, "resume", self._source.resume)

    async def restore(self, request: web.Request) -> web.StreamResponse:
        """Disarm it, delete our filters and restore settings."""
        return await self._ordered(request, "restore", self._source.restore)

    async def disarm_all(self, request: web.Request) -> web.StreamResponse:
        """Stop every change of every interface at once, also of later ones."""
        try:
            await self._source.disarm(None)
        except OperatorError as refusal:
            return error(409, refusal.message, refusal.hint)
        armed: ArmedShown = {"armed": list(self._source.status().armed)}
        return one_object(armed)

    async def _ordered(
        self,
        request: web.Request,
        verb: str,
        order: Callable[[str], Awaitable[Sequence[Restored] | None]],
    ) -> web.Response:
        nic = known(self._source, request.match_info["nic"])
        try:
            restored = await order(nic)
        except KeyError:
            known(self._source, nic)  # it may just have gone
            raise
        except OperatorError as refusal:
            return error(409, refusal.message, refusal.hint)
        except OSError as refusal:
            return kernel_refused(verb, nic, refusal)
        view = seen(self._source, nic)
        ordered = shown(OrderedShown, view, nic=nic)
        return one_object(ordered if restored is None else _undone(ordered, restored))


def _undone(ordered: OrderedShown, restored: Sequence[Restored]) -> RestoredShown:
    rows = [shown(PutBackShown, each, errno=_refusal(each)) for each in restored]
    return {**ordered, "restored": rows, "clear": all(each.done for each in restored)}


def _refusal(each: Restored) -> str | None:
    """The kernel's name for its error."""
    return None if each.done else errno.errorcode.get(each.errno, str(each.errno))


def kernel_refused(verb: str, nic: str, refusal: OSError) -> web.Response:
    """A 409."""
    name = errno.errorcode.get(refusal.errno or 0, str(refusal.errno))
    message = f"the kernel refused to {verb} {nic}: {refusal.strerror} ({name})"
    return error(409, message, "see `atfnctl events`")
