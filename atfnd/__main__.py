# SPDX-License-Identifier: GPL-2.0-or-later
"""The command `atfnd`: run, check, restore, lab. Each verb imports only what it needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from atfnd.errors import OperatorError
from atfnd.lab.cli import app as lab

__all__ = ["main"]

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
app.add_typer(lab, name="lab")

RunDir = Annotated[Path, typer.Option(help="Socket, lock and journal live here.")]
Config = Annotated[Path | None, typer.Option(help="Policy file; policies.d stands beside it.")]


@app.command()
def run(
    nic: Annotated[list[str], typer.Option(help="A NIC to steer, e.g. lab:lab. Repeatable.")] = [],  # noqa: B006
    arm: Annotated[list[str], typer.Option(help="Allow changes on this NIC. Repeatable.")] = [],  # noqa: B006
    run_dir: RunDir = Path("/run/atfnd"),
    config: Config = None,
    observer: Annotated[
        Literal["auto", "bpf", "sock_diag"] | None, typer.Option(help="Overrides the policy.")
    ] = None,
) -> None:
    """Watch sockets and steer their flows, in the foreground."""
    from atfnd.run import run

    run(nic, arm, run_dir, config, observer)


@app.command()
def check(config: Config = None) -> None:
    """Read the policy and say what is wrong with it; exit 2 when something is."""
    from atfnd.policy.load import check

    check(config)


@app.command()
def restore(run_dir: RunDir = Path("/run/atfnd")) -> None:
    """Delete every rule a stopped daemon left in its NICs."""
    from atfnd.run import restore

    restore(run_dir)


def main() -> None:
    """Run the command; an operator's error is one line and an exit code."""
    try:
        app()
    except OperatorError as error:
        print(f"atfnd: {error}", file=sys.stderr)
        if error.hint:
            print(f"hint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
