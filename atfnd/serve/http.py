# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server on its Unix socket: who may connect, how long and how much they may send.

Writes one socket file, mode 0660, of the group `atfnd` where there is one. Every error is answered
as `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import asyncio
import grp
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from weakref import WeakSet

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from atfnd.errors import OperatorError
from atfnd.serve import Source
from atfnd.serve.answers import STREAMS, TURN, error
from atfnd.serve.api import Api
from atfnd.serve.cpu_time import CpuTimes
from atfnd.serve.decisions import Decisions
from atfnd.serve.description import Description
from atfnd.serve.door import Door, uid_of
from atfnd.serve.events import Events
from atfnd.serve.flows import Flows
from atfnd.serve.metrics import Metrics

__all__ = ["Server", "application", "serve"]

READ_S = 10.0  # for the head of a request, its body, and between two requests
STOP_S = 2.0  # for requests under way when the daemon stops
BODY_BYTES = 4096
MODE = 0o660
GROUP = "atfnd"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A running API. `stop` ends it and removes the socket file if it is still ours."""

    def __init__(
        self, runner: web.AppRunner, listening: asyncio.Server, path: Path, file: tuple[int, int]
    ) -> None:
        self._runner = runner
        self._listening = listening
        self._path = path
        self._file = file

    async def stop(self) -> None:
        self._listening.close()
        await self._runner.cleanup()
        try:
            found = self._path.lstat()
        except FileNotFoundError:
            return
        if (found.st_dev, found.st_ino) == self._file:
            self._path.unlink()


async def serve(source: Source, socket_path: str | os.PathLike[str]) -> Server:
    """Publish `source` at `socket_path` and return once it can be connected to.

    OperatorError: something else lives at that path, or it cannot be made.
    """
    path = Path(socket_path)
    app = application(source)
    logger = logging.getLogger("atfnd.serve")
    logger.addFilter(_is_bug)
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=logger,
        keepalive_timeout=READ_S,
        lingering_time=1.0,
        shutdown_timeout=STOP_S,
        handler_cancellation=True,
    )
    listener = _bind(path)
    try:
        found = path.lstat()
        await runner.setup()
        assert runner.server is not None
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(Door(runner.server), sock=listener)
    except BaseException:
        listener.close()
        path.unlink(missing_ok=True)
        raise
    return Server(runner, listening, path, (found.st_dev, found.st_ino))


def application(source: Source) -> web.Application:
    """Every resource, behind what holds for each of them."""
    app = web.Application(
        middlewares=[
            _answer_errors,
            _only_root_changes,
            _read_body,
            _to_the_end,
            _answer_errors,
        ],
        client_max_size=BODY_BYTES,
    )
    app[TURN], app[STREAMS] = asyncio.Lock(), WeakSet()
    app.on_shutdown.append(_end_streams)
    for resources in (Description, Api, CpuTimes, Flows, Events, Decisions, Metrics):
        app.add_routes(resources(source).routes())
    return app


async def _end_streams(app: web.Application) -> None:
    for task in app[STREAMS]:
        task.cancel()


def _is_bug(record: logging.LogRecord) -> bool:
    """Not that a client sends what is no HTTP, or goes away in the middle of an answer."""
    fault = record.exc_info[1] if record.exc_info else None
    return not isinstance(fault, HttpProcessingError | ConnectionError)


def _bind(path: Path) -> socket.socket:
    """A bound socket that does not listen yet: nobody connects before owner and mode are right."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        _remove_stale(path)
        listener.bind(str(path))
        path.chmod(MODE)
        _give_to_group(path)
    except OSError as refusal:
        listener.close()
        reason = refusal.strerror or str(refusal)
        raise OperatorError(
            f"cannot listen on {path}: {reason}", "choose another --socket"
        ) from None
    except OperatorError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _give_to_group(path: Path) -> None:
    """Who belongs to GROUP may read, where there is one; else the socket is root's alone."""
    try:
        group = grp.getgrnam(GROUP).gr_gid
    except KeyError:
        return
    if path.lstat().st_gid != group:  # the service's own is it: it needs no right to change it
        os.chown(path, -1, group)


def _remove_stale(path: Path) -> None:
    """Remove what a daemon that was killed left behind, and nothing else."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OperatorError(f"{path} exists and is no socket", "choose another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except BlockingIOError:
            pass  # its backlog is full: somebody listens
    raise OperatorError(
        f"a daemon already answers on {path}", "stop it, or choose another --socket"
    )


@web.middleware
async def _answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
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
        return error(404, f"nothing at {request.path}", "/v1/openapi.yaml says what there is")


@web.middleware
async def _only_root_changes(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Who may open the socket may read; what changes anything is asked by root's processes."""
    if _changes(request) and uid_of(request.transport) != 0:
        return error(403, "only root may change anything", "run it with sudo")
    return await handler(request)


def _changes(request: web.Request) -> bool:
    return request.method != "GET" and request.match_info.http_exception is None


@web.middleware
async def _to_the_end(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What only reads ends when its client goes; what was asked to be changed is done."""
    if _changes(request):
        return await asyncio.shield(asyncio.ensure_future(handler(request)))
    return await handler(request)


@web.middleware
async def _read_body(request: web.Request, handler: Handler) -> web.StreamResponse:
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
