# SPDX-License-Identifier: GPL-2.0-or-later
"""Connecting to a Unix socket as another user, and HTTP with `requests` over such a socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection
from urllib3.connectionpool import HTTPConnectionPool

__all__ = ["NOBODY", "connected", "session"]

NOBODY = 65534


@contextmanager
def _acting_as(uid: int) -> Iterator[None]:
    """SO_PEERCRED is who a process acts as when it connects."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)


def connected(path: Path, uid: int, timeout_s: float = 30.0) -> socket.socket:
    """A connection of a process of `uid`'s."""
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(timeout_s)
    with _acting_as(uid):
        client.connect(str(path))
    return client


class _Connection(HTTPConnection):
    def __init__(self, path: Path, uid: int) -> None:
        super().__init__("atfnd")
        self._path, self._uid = path, uid

    def connect(self) -> None:
        self.sock = connected(self._path, self._uid)


class _Pool(HTTPConnectionPool):
    def __init__(self, path: Path, uid: int) -> None:
        super().__init__("atfnd")
        self._path, self._uid = path, uid

    def _new_conn(self) -> _Connection:
        return _Connection(self._path, self._uid)


class _Adapter(HTTPAdapter):
    def __init__(self, path: Path, uid: int) -> None:
        super().__init__()
        self._pool = _Pool(path, uid)

    def get_connection_with_tls_context(self, *args: object, **kwargs: object) -> _Pool:
        return self._pool

    def close(self) -> None:
        self._pool.close()
        super().close()


def session(path: Path, uid: int) -> requests.Session:
    """Asks whatever listens there for `http://atfnd/...`."""
    made = requests.Session()
    made.trust_env = False
    made.mount("http://atfnd", _Adapter(path, uid))
    return made
