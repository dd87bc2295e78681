# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd check` and `atfnd schema`: what policy files say, and what they may say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atfnd.errors import OperatorError

__all__ = ["Config", "check", "schema"]

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


def check(files: Files = None, config: Config = None, for_host: ForHost = None) -> None:
    """Read the policy, report mistakes and what is probably not meant; exit 2 if there are
    mistakes."""
    from atfnd.policy.file.host import read_host  # fmt: skip
    from atfnd.policy.file.load import check  # fmt: skip

    if files and config is not None:
        raise OperatorError("FILE and --config both say what to read", "name files, or --config")
    check(config, files or (), None if for_host is None else read_host(for_host))


def schema() -> None:
    """Print the JSON Schema of a policy file, for editors."""
    import json  # fmt: skip

    from atfnd.policy.file.json_schema import json_schema  # fmt: skip

    print(json.dumps(json_schema(), indent=2))
