# SPDX-License-Identifier: GPL-2.0-or-later
"""The command `atfnd`: run, check, schema, doctor, replay, restore, lab. Each imports what
it needs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from atfnd.ctl.completion import interfaces_here
from atfnd.ctl.help import Program
from atfnd.ctl.version import Version
from atfnd.errors import OperatorError, reported
from atfnd.lab.cli import app as lab
from atfnd.replay.verb import replay

__all__ = ["app", "main"]

LOOK, DAEMON = "See what this machine can do", "Run the daemon, and undo what it did"
POLICY, TRY = "Work on the policy", "Try it without a NIC"

app = Program()

NICS = "eth2, lab:lab, or 'en*': every interface that has a device; repeatable."
ARM = "Arm this --nic. The policy and `atfnctl arm` arm others."
FACTS = "Print what `atfnd check --for-host` needs to know of this machine, as JSON."
OBSERVER = "Overrides `daemon.observer` of the policy."
Nics = Annotated[
    list[str] | None, typer.Option(metavar="NIC", help=NICS, autocompletion=interfaces_here)
]
Arm = Annotated[
    list[str] | None, typer.Option(metavar="NIC", help=ARM, autocompletion=interfaces_here)
]
RunDir = Annotated[
    Path, typer.Option(metavar="DIR", help="Directory of socket, lock and journals.")
]
Observer = Annotated[
    Literal["auto", "bpf", "sock_diag"] | None,
    typer.Option(metavar="auto|bpf|sock_diag", help=OBSERVER),
]

Config = Annotated[Path | None, typer.Option(
    metavar="FILE",
    help="Policy file (default: /etc/atfnd/atfnd.yaml); policies.d beside it is read too.",
)]  # fmt: skip
Files = Annotated[list[Path] | None, typer.Argument(
    metavar="FILE", help="Read these files alone, in this order, as one policy."
)]  # fmt: skip
ForHost = Annotated[Path | None, typer.Option(
    metavar="FACTS", help="Check for the machine on which `atfnd doctor --facts` wrote this file."
)]  # fmt: skip


@app.callback()
def atfnd(version: Version = False) -> None:
    """Delivers packets on the core of the application that reads them."""


@app.verb(LOOK)
def doctor(
    nic: Annotated[
        str | None,
        typer.Argument(
            metavar="NIC", help="Default: all, and the machine.", autocompletion=interfaces_here
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    facts: Annotated[bool, typer.Option("--facts", help=FACTS)] = False,
) -> None:
    """What atfnd could do here, what prevents it, and what to do; needs no daemon, writes nothing.
    Exit 1 if something prevents it."""
    if facts:
        from atfnd.cli.facts import facts_here  # fmt: skip

        if nic is not None:
            raise OperatorError("--facts are of the whole machine", "leave NIC out")
        print(facts_here().model_dump_json(indent=2))
        return
    from atfnd.cli.doctor import doctor  # fmt: skip

    if not doctor(nic, as_json):
        raise typer.Exit(1)


@app.verb(DAEMON)
def run(nic: Nics = None, arm: Arm = None, run_dir: RunDir = Path("/run/atfnd"),
        config: Config = None, observer: Observer = None) -> None:  # fmt: skip
    """Observe the sockets of each --nic and steer their flows; changes armed NICs only."""
    from atfnd.cli.run import run  # fmt: skip

    run(nic or [], arm or [], run_dir, config, observer)


@app.verb(DAEMON)
def restore(run_dir: RunDir = Path("/run/atfnd")) -> None:
    """Delete the filters and restore the settings that a stopped daemon left in its NICs."""
    from atfnd.cli.restore import restore  # fmt: skip

    restore(run_dir)


@app.verb(POLICY)
def check(files: Files = None, config: Config = None, for_host: ForHost = None) -> None:
    """Read the policy, report mistakes and what is probably not meant; exit 2 if there are
    mistakes."""
    from atfnd.cli.facts import check  # fmt: skip

    check(files or [], config, for_host)


@app.verb(POLICY)
def schema() -> None:
    """Print the JSON Schema of a policy file, for editors."""
    import json  # fmt: skip

    from atfnd.policy.file.json_schema import json_schema  # fmt: skip

    print(json.dumps(json_schema(), indent=2))


app.verb(POLICY)(replay)
app.add_typer(lab, name="lab", rich_help_panel=TRY)


def main() -> None:
    """Run the command; an operator's error is one line and an exit code."""
    reported("atfnd", partial(app, prog_name="atfnd"))
