# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd check` and `atfnd schema`: what policy files say, and what they may say."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Config", "check", "schema"]

Config = Annotated[Path | None, typer.Option(
    metavar="FILE",
    help="Policy file (default: /etc/atfnd/atfnd.yaml); policies.d beside it is read too.",
)]  # fmt: skip


def check(config: Config = None) -> None:
    """Read the policy and report mistakes; exit 2 if there are any."""
    from atfnd.policy.file.load import check  # fmt: skip

    check(config)


def schema() -> None:
    """Print the JSON Schema of a policy file, for editors."""
    import json  # fmt: skip

    from atfnd.policy.file.json_schema import json_schema  # fmt: skip

    print(json.dumps(json_schema(), indent=2))
