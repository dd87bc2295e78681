# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server on its Unix socket: which users may connect, and which may change anything.

Writes two socket files: one of mode 0660, of the group `atfnd` where there is one, and one beside
it of mode 0600, whose backlog only root can fill.
"""

from __future__ import annotations

import asyncio
import grp
import os
import socket
import stat
from contextlib import AsyncExitStack
from pathlib import Path

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.serve import Source
from atfnd.serve.api.answers import error
from atfnd.serve.api.decisions import Decisions
from atfnd.serve.api.door import Accepting, Door, UserPace, uid_of
from atfnd.serve.api.events import Events
from atfnd.serve.api.flows import Flows
from atfnd.serve.api.gain import GainRoutes
from atfnd.serve.api.measuring import MeasuringRoutes
from atfnd.serve.api.openapi import Described
from atfnd.serve.api.orders import Orders
from atfnd.serve.api.pairs import PairRoutes
from atfnd.serve.api.requests import BODY_BYTES, answer_errors, prepared, read_body, serving
from atfnd.serve.api.route import Handler, Route
from atfnd.serve.api.routes import Api
from atfnd.serve.metrics import Metrics
from atfnd.socket_path import of_root

__all__ = ["Server", "described", "serve"]

MODE, ROOT_MODE = 0o660, 0o600
GROUP = "atfnd"
EVERY_S = 0.005  # between two readers, on average; root is let in at once
ELSEWHERE = "/v1/openapi.yaml says what there is"


class _Listener:
    """A bound socket, and the file it is found by."""

    def __init__(self, path: Path, *, group: bool) -> None:
        self.socket, self._path = _bind(path, group=group), path
        self._file = _identity(path)

    def close(self) -> None:
        """Removes the file if it is still this socket's."""
        self.socket.close()
        if self._file is not None and _identity(self._path) == self._file:
            self._path.unlink()


class Server:
    """A running API. `stop` ends it and removes the socket files if they are still ours."""

    def __init__(self, ending: AsyncExitStack) -> None:
        self._ending = ending

    async def stop(self) -> None:
        await self._ending.aclose()


async def serve(
    source: Source, socket_path: str | os.PathLike[str], turn: asyncio.Lock | None = None
) -> Server:
    """Publish `source` at `socket_path` and return once it can be connected to. Long answers take
    turns by `turn`, with those of other servers that share it.

    OperatorError: something else lives at that path, or it cannot be made.
    """
    path = Path(socket_path)
    runner = prepared(_application(source), turn or asyncio.Lock(), ELSEWHERE)
    async with AsyncExitStack() as ending:
        listeners = [_Listener(path, group=True)]
        ending.callback(listeners[0].close)
        listeners.append(_Listener(of_root(path), group=False))
        ending.callback(listeners[1].close)
        ending.push_async_callback(runner.cleanup)
        door = Door(await serving(runner, UserPace()))
        for each, every_s in zip(listeners, (EVERY_S, 0), strict=True):
            accepting = Accepting(each.socket, door, every_s)
            ending.callback(accepting.close)
        return Server(ending.pop_all())


def _application(source: Source) -> web.Application:
    """Every resource, with the checks that each of them needs."""
    app = web.Application(
        middlewares=[answer_errors, _only_root_changes, read_body, _to_the_end, answer_errors],
        client_max_size=BODY_BYTES,
    )
    app.add_routes(route.served() for route in described(source))
    return app


def described(source: Source) -> list[Route]:
    """Every resource, and the description of all."""
    rooms = (
        Api, Flows, GainRoutes, PairRoutes, Events, Decisions, Metrics, MeasuringRoutes, Orders,
    )  # fmt: skip
    return Described(route for room in rooms for route in room(source).routes()).routes


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file it is."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _bind(path: Path, *, group: bool) -> socket.socket:
    """A bound socket that does not listen yet: no client connects before owner and mode are
    right."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        _remove_stale(path)
        listener.bind(str(path))
        path.chmod(MODE if group else ROOT_MODE)
        if group:
            _give_to_group(path)
    except OSError as refusal:
        listener.close()
        reason = refusal.strerror or str(refusal)
        raise OperatorError(
            f"cannot listen on {path}: {reason}", "choose another --run-dir"
        ) from None
    except OperatorError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _give_to_group(path: Path) -> None:
    """Members of GROUP may read, if the group exists; else the socket is root's alone."""
    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return
    if path.lstat().st_gid != group:  # our own group already: changing it needs no right
        os.chown(path, -1, group)


def _remove_stale(path: Path) -> None:
    """Remove what a daemon that was killed left behind, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OperatorError(f"{path} exists and is no socket", "choose another --run-dir")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its backlog is full: a process listens
    raise OperatorError(
        f"a daemon already answers on {path}", "stop it, or choose another --run-dir"
    )


@web.middleware
async def _only_root_changes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A process that may open the socket may read; only root's processes may change anything."""
    if _changes(request) and uid_of(request.transport) != 0:
        return error(403, "only root may change anything", "run it with sudo")
    return await handler(request)


def _changes(request: web.Request) -> bool:
    return request.method != "GET" and request.match_info.http_exception is None


@web.middleware
async def _to_the_end(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A request that only reads ends when its client goes; a change is carried out to the end."""
    if _changes(request):
        return await asyncio.shield(asyncio.ensure_future(handler(request)))
    return await handler(request)
