# SPDX-License-Identifier: GPL-2.0-or-later
"""The option `--version` of `atfnd` and `atfnctl`."""

from __future__ import annotations

from typing import Annotated

import typer

from atfnd import __version__

__all__ = ["Version"]


def _say(context: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{context.info_name} {__version__}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option("--version", callback=_say, is_eager=True, help="Print the version and exit."),
]
