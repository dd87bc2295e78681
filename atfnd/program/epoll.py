# SPDX-License-Identifier: GPL-2.0-or-later
"""How epolls of applications busy-poll, as settings that are written, undone and found to have been
changed by others (`setting`)."""

from __future__ import annotations

from atfnd.kernel.system.epoll import read_params, write_params
from atfnd.model import EpollId, EpollParams

__all__ = ["EPOLLS", "Epolls"]

EPOLLS = "/epolls"  # no interface can have this name


class Epolls:
    """`EpollParams` of every process, by `EpollId.setting`."""

    name = EPOLLS

    def setting(self, name: str) -> str | None:
        """As the kernel has it now; None: the process or its epoll is gone. OSError: as
        `read_params`."""
        params = read_params(EpollId.of(name))
        return None if params is None else str(params)

    def write_setting(self, name: str, value: str) -> None:
        """KeyError: the process or its epoll is gone. OSError: the kernel refused."""
        write_params(EpollId.of(name), EpollParams.of(value))
