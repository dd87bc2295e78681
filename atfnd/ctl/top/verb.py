# SPDX-License-Identifier: GPL-2.0-or-later
"""The verb `top` of atfnctl."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import partial
from typing import Annotated

import typer

from atfnd.ctl import output
from atfnd.ctl.client import Client
from atfnd.ctl.measuring import app
from atfnd.ctl.verbs import SEE, SOCKET, Interval, Json, OnlyNic, Socket, Unsteered

__all__ = ["app"]


@app.verb(SEE)
def top(
    interval: Interval = 1.0,
    unsteered: Unsteered = False,
    nic: OnlyNic = None,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Flows by rate, CPUs, queues and moves, live; h shows the keys, q quits."""
    from atfnd.ctl.top.figures import figures_once
    from atfnd.ctl.top.frame import page
    from atfnd.ctl.top.look import Looks
    from atfnd.ctl.top.loop import Live

    client = Client(socket)
    try:
        if once or as_json or not sys.stdout.isatty():
            figures = figures_once(Looks(client, nic, 1.0, unsteered), interval)
            if as_json:
                output.say_json(asdict(figures))
            else:
                output.show_lines(partial(page, figures))
        elif number := Live(Looks(client, nic, unsteered=unsteered), interval).run():
            raise typer.Exit(128 + number)
    except KeyboardInterrupt:
        return
