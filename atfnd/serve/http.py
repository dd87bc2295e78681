# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server on its Unix socket: who may connect, how long and how much they may send.

Writes one socket file, mode 0660. Every error is answered as `{"error": ..., "hint": ...}`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.serve import Source
from atfnd.serve.answers import error
from atfnd.serve.api import Api
from atfnd.serve.decisions import Decisions

__all__ = ["Server", "serve"]

READ_S = 10.0  # for the head of a request, its body, and between two requests
STOP_S = 2.0  # for requests under way when the daemon stops
BODY_BYTES = 4096
MODE = 0o660

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """A running API. `stop` ends it and removes the socket file if it is still ours."""

    def __init__(self, runner: web.AppRunner, path: Path, file: tuple[int, int]) -> None:
        self._runner = runner
        self._path = path
        self._file = file

    async def stop(self) -> None:
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
    app = web.Application(middlewares=[_answer_errors, _read_body], client_max_size=BODY_BYTES)
    app.add_routes([*Api(source).routes(), *Decisions(source).routes()])
    runner = web.AppRunner(
        app,
        access_log=None,
        keepalive_timeout=READ_S,
        lingering_time=1.0,
        shutdown_timeout=STOP_S,
        handler_cancellation=False,
    )
    listener = _bind(path)
    try:
        found = path.lstat()
        await runner.setup()
        await web.SockSite(runner, listener).start()
    except BaseException:
        listener.close()
        path.unlink(missing_ok=True)
        raise
    return Server(runner, path, (found.st_dev, found.st_ino))


def _bind(path: Path) -> socket.socket:
    """A bound socket that does not listen yet: nobody connects before the mode is right."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        path.parent.mkdir(mode=0o755, exist_ok=True)
        _remove_stale(path)
        listener.bind(str(path))
        path.chmod(MODE)
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
        paths = (
            "/v1/{status,flows,explain,queues,nics,rules,topology,events,doctor,policy,plan,record}"
        )
        return error(404, f"nothing at {request.path}", f"there is {paths}")


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
