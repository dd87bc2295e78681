# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd run`: what can be wrong is found before anything is changed, and before the daemon is
imported, which takes longer than all checks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from atfnd.cli.run_dir import alone, need_root
from atfnd.errors import OperatorError

__all__ = ["run"]


def run(
    nics: Sequence[str],
    arm: Sequence[str],
    run_dir: Path,
    config: Path | None,
    observer: str | None,
) -> None:
    """Steer `nics` until SIGTERM or SIGINT. OperatorError before anything is changed."""
    need_root()
    if not nics:
        raise OperatorError("no NIC to steer", "name one: --nic lab:lab (after `atfnd lab up`)")
    for name in arm:
        if name not in nics:
            raise OperatorError(f"--arm {name}: it is not among the NICs", f"add --nic {name}")

    from atfnd.policy.file.load import load  # fmt: skip

    read = partial(load, config, trusting=False)
    policy = read()
    with ExitStack() as stack:
        stack.enter_context(alone(run_dir))
        from atfnd.observe.nics.interfaces import Interfaces  # fmt: skip
        from atfnd.observe.nics.watch import NicWatch  # fmt: skip

        interfaces = Interfaces(nics, NicWatch)
        stack.callback(interfaces.close)
        watches = interfaces.start()
        from atfnd.cli.daemon import steer  # fmt: skip

        steer(interfaces, watches, policy, read, tuple(arm), run_dir, observer)
