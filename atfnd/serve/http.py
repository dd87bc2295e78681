# SPDX-License-Identifier: GPL-2.0-or-later
"""The HTTP server on its Unix socket: who may connect, and who may change anything.

Writes one socket file, mode 0660, of the group `atfnd` where there is one.
"""

from __future__ import annotations

import asyncio
import grp
import os
import socket
import stat
from pathlib import Path

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.serve import Source
from atfnd.serve.answers import error
from atfnd.serve.api import Api
from atfnd.serve.cpu_time import CpuTimes
from atfnd.serve.decisions import Decisions
from atfnd.serve.description import Description
from atfnd.serve.door import Door, uid_of
from atfnd.serve.events import Events
from atfnd.serve.flows import Flows
from atfnd.serve.metrics import Metrics
from atfnd.serve.requests import BODY_BYTES, Handler, answer_errors, prepared, read_body

__all__ = ["Server", "application", "serve"]

MODE = 0o660
GROUP = "atfnd"
ELSEWHERE = "/v1/openapi.yaml says what there is"


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


async def serve(
    source: Source, socket_path: str | os.PathLike[str], turn: asyncio.Lock | None = None
) -> Server:
    """Publish `source` at `socket_path` and return once it can be connected to. Long answers take
    turns by `turn`, with those of whoever else has it.

    OperatorError: something else lives at that path, or it cannot be made.
    """
    path = Path(socket_path)
    runner = prepared(application(source), turn or asyncio.Lock(), ELSEWHERE)
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
        middlewares=[answer_errors, _only_root_changes, read_body, _to_the_end, answer_errors],
        client_max_size=BODY_BYTES,
    )
    for resources in (Description, Api, CpuTimes, Flows, Events, Decisions, Metrics):
        app.add_routes(resources(source).routes())
    return app


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
