# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnd replay`: what another policy would have decided by a recording, in numbers or in full."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atfnd.errors import OperatorError

if TYPE_CHECKING:
    from atfnd.replay.replay import Decided, Replay

__all__ = ["replay"]


def replay(
    file: Annotated[Path, typer.Argument(metavar="RECORDING", help="What `atfnctl record` wrote.")],
    policy: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Policy file (default: /etc/atfnd/atfnd.yaml); policies.d beside it is read too.",
        ),
    ] = None,
    actions: Annotated[
        bool, typer.Option("--actions", help="List each action with its reason.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a policy would have decided from a recording; needs no root and no daemon."""
    from atfnd.policy.file.load import load
    from atfnd.replay.recording import lines_of
    from atfnd.replay.replay import Replay

    played, began_ns, ended_ns = Replay(load(policy)), None, 0
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            for line in lines_of(text, str(file)):
                began_ns = line.at_ns if began_ns is None else began_ns
                ended_ns = line.at_ns
                played.take(line)
    except OSError as refusal:
        raise OperatorError(f"{file}: {refusal.strerror}") from None
    began_ns = began_ns or 0
    if as_json:
        rows = [_row(each, began_ns) for each in played.decided]
        print(json.dumps(_summary(played, ended_ns - began_ns) | {"actions": rows}))
        return
    if actions:
        for each in played.decided:
            print(_line(each, began_ns))
    for words in _words(played, ended_ns - began_ns):
        print(words)


def _summary(played: Replay, took_ns: int) -> dict[str, Any]:
    """Everything but the actions one by one."""
    kinds = Counter(each.action.kind.value for each in played.decided)
    rules = [
        {
            "rule": rule.name,
            "source": rule.source,
            "flows": len(played.matching.matched.get(rule.name, ())),
            "actions": sum(each.action.rule_name == rule.name for each in played.decided),
        }
        for rule in played.policy.flows
    ]
    seen = played.bytes_seen
    return {
        "seconds": took_ns / 1e9,
        "rules": rules,
        "kinds": dict(kinds),
        "most_filters": played.most_filters,
        "overflow": played.memory.overflow,
        "bytes": seen,
        "locality_recorded": played.bytes_there / seen if seen else None,
        "locality_replayed": played.bytes_replayed / seen if seen else None,
        "lost": played.lost,
    }


def _words(played: Replay, took_ns: int) -> Iterator[str]:
    found = _summary(played, took_ns)
    kinds = ", ".join(f"{count} {kind}" for kind, count in found["kinds"].items())
    yield f"{found['seconds']:.1f} s recorded; decided: {kinds or 'nothing'}"
    for rule in found["rules"]:
        did = f"{rule['flows']} flows, {rule['actions']} actions"
        yield f"  {rule['rule']}: {did} ({rule['source']})"
    full = f", {found['overflow']} flows found no room" if found["overflow"] else ""
    yield f"filters: {found['most_filters']} at most{full}"
    if found["bytes"]:
        before, after = found["locality_recorded"], found["locality_replayed"]
        yield f"bytes on the application's core: {before:.1%} recorded, {after:.1%} replayed"
    if found["lost"]:
        yield f"{found['lost']} lines were lost while it was recorded"


def _row(decided: Decided, began_ns: int) -> dict[str, Any]:
    return {"at_s": (decided.at_ns - began_ns) / 1e9, **decided.action.shown()}


def _line(decided: Decided, began_ns: int) -> str:
    row = _row(decided, began_ns)
    what = f"queue {row['old']} -> {row['new']}"
    if row["setting"] is not None:
        what = f"{row['setting']} = {row['value'] or 'none'}"
    elif row["queue"] is not None:
        what = f"queue {row['queue']}: CPU {row['old']} -> {row['new']}"
    about = " ".join(each for each in (row["nic"], row["flow"]) if each)
    kind = "setting" if row["setting"] is not None else row["kind"]
    return f"{row['at_s']:10.3f}  {kind:<9} {about} {what} ({row['why']})"
