# SPDX-License-Identifier: GPL-2.0-or-later
"""The command `atfnd`: run, check, schema, replay, restore, lab. Each imports what it needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from atfnd.errors import told
from atfnd.lab.cli import app as lab
from atfnd.policy.cli import Config, check, schema
from atfnd.replay.verb import replay

__all__ = ["main"]

app = typer.Typer(
    help="Steers each flow's packets to the core its application runs on.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(lab, name="lab")
app.command()(check)
app.command()(schema)
app.command()(replay)

Nics = Annotated[list[str] | None, typer.Option(metavar="NIC", help="E.g. lab:lab; repeatable.")]
RunDir = Annotated[Path, typer.Option(help="Socket, lock and journal live here.")]
Observer = Annotated[Literal["auto", "bpf", "sock_diag"] | None, typer.Option()]


@app.command()
def run(nic: Nics = None, arm: Nics = None, run_dir: RunDir = Path("/run/atfnd"),
        config: Config = None, observer: Observer = None) -> None:  # fmt: skip
    """Watch sockets and steer the flows of each --nic; change only those that --arm names."""
    from atfnd.run import run  # fmt: skip

    run(nic or [], arm or [], run_dir, config, observer)


@app.command()
def restore(run_dir: RunDir = Path("/run/atfnd")) -> None:
    """Undo what a stopped daemon left in its NICs: rules and settings."""
    from atfnd.run import restore  # fmt: skip

    restore(run_dir)


def main() -> None:
    """Run the command; an operator's error is one line and an exit code."""
    told("atfnd", app)


if __name__ == "__main__":
    main()
