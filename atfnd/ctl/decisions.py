# SPDX-License-Identifier: GPL-2.0-or-later
"""The verbs of atfnctl about what the daemon decides by: policy, plan, record, reload."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from atfnd.ctl import completion, output
from atfnd.ctl.client import Client, Row
from atfnd.ctl.columns import Grid
from atfnd.ctl.empty import explained
from atfnd.ctl.tables import plain, size, stay_disarmed
from atfnd.ctl.verbs import PAYS, POLICY, SOCKET, Json, OnlyNic, Socket, app
from atfnd.errors import OperatorError

__all__ = ["app"]


@app.verb(POLICY)
def policy(
    rule: Annotated[
        str | None,
        typer.Argument(metavar="RULE", help="Only this rule.", autocompletion=completion.rules),
    ] = None,
    flows: Annotated[bool, typer.Option("--flows", help="Each flow and its rule.")] = False,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """The rules of the policy: file and line, and what each one does now."""
    client = Client(socket)
    answer = client.get("/v1/policy")
    rules = {row["rule"]: row for row in answer["flows"] if rule in (None, row["rule"])}
    if not rules:
        known = ", ".join(row["rule"] for row in answer["flows"])
        raise OperatorError(f"no flow rule is named {rule}", f"there are: {known}")
    if flows:
        rows = [
            row | {"source": rules[row["rule"]]["source"]}
            for row in client.pages("/v1/flows", "flows")
            if row["rule"] in rules
        ]
        if as_json:
            output.say_json(rows)
        else:
            output.show(explained(_matched(rows), lambda: f"no flow matches {', '.join(rules)}"))
    elif as_json:
        output.say_json(answer if rule is None else rules[rule])
    else:
        output.show(_rules(rules.values()))


@app.verb(PAYS)
def plan(nic: OnlyNic = None, socket: Socket = SOCKET, as_json: Json = False) -> None:
    """What would be done now, the reason, and the shell commands that do the same."""
    rows = Client(socket).get("/v1/plan", nic=nic)["actions"]
    if as_json:
        output.say_json(rows)
        return
    for row in rows:
        for line in _action(row):
            output.say(line)
    if not rows:
        output.say("nothing is to be done")


@app.verb(POLICY)
def record(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A new file.")],
    seconds: Annotated[
        int, typer.Option(min=1, max=3600, metavar="SECONDS", help="How long to record.")
    ] = 60,
    most: Annotated[
        int, typer.Option("--max", min=1, metavar="N", help="The most lines to write.")
    ] = 100_000,
    socket: Socket = SOCKET,
) -> None:
    """Record what the daemon observes, for `atfnd replay`; Ctrl-C ends it early."""
    if file.exists():
        raise OperatorError(f"{file}: File exists", "name a new file")
    lines = Client(socket).lines("/v1/record", seconds + 10.0, seconds=seconds, max=most)
    count = _written(file, lines)
    if not count:
        raise OperatorError(f"nothing was recorded, and there is no {file}", exit_code=1)
    output.say(f"{file}: {count} lines")


def _written(file: Path, lines: Iterable[bytes]) -> int:
    """How many lines there are, until Ctrl-C. The file is made for the first one: where there is
    none, there is no file."""
    count = 0
    out: BinaryIO | None = None
    try:
        for line in lines:
            out = out or _new(file)
            out.write(line)
            count += 1
    except KeyboardInterrupt:
        pass  # the reader has seen enough
    except OSError as refusal:
        raise OperatorError(f"{file}: {refusal.strerror}", exit_code=1) from None
    finally:
        if out is not None:
            out.close()
            if not count:
                file.unlink()
    return count


def _new(file: Path) -> BinaryIO:
    try:
        return file.open("xb", buffering=0)
    except OSError as refusal:
        raise OperatorError(f"{file}: {refusal.strerror}", "name a new file") from None


@app.verb(POLICY)
def reload(socket: Socket = SOCKET, as_json: Json = False) -> None:
    """Read the policy again. If it is wrong, nothing changes (exit 2)."""
    answer = Client(socket).post("/v1/reload")
    if as_json:
        output.say_json(answer)
    else:
        files = ", ".join(answer["files"]) or "built in"
        output.say(f"{answer['flow_rules']} flow rules in force: {files}")
        if answer["disarmed"]:
            output.say(stay_disarmed(answer["disarmed"]))


def _rules(rows: Iterable[Row]) -> Grid:
    columns = (
        "RULE", "PLACEMENT", "ORDER", ">FLOWS", ">PLACED", ">FILTERS", ">BYTES", "SOURCE",
    )  # fmt: skip
    shown = (row | {"bytes": None if row["bytes"] is None else size(row["bytes"])} for row in rows)
    return plain("rules", columns, "rule placement order flows placed filters bytes source", shown)


def _matched(rows: Iterable[Row]) -> Grid:
    columns = "PROTO", "LOCAL", "REMOTE", "COMM", "STATE", "RULE", "SOURCE"
    return plain("matched", columns, "proto local remote comm state rule source", rows)


def _action(row: Row) -> list[str]:
    """What and why, then the commands, as a script would have them."""
    about = " ".join(output.text(row[name]) for name in ("nic", "flow") if row[name] is not None)
    what = f"queue {row['old']} -> {row['new']}"
    if row["setting"] is not None:
        what = f"{row['setting']} = {row['value'] or 'none'}"
    elif row["queue"] is not None:
        what = f"queue {row['queue']}: CPU {row['old']} -> {row['new']}"
    when = "" if row["due_s"] is None else f", in {row['due_s']:.1f} s"
    by = f" [{row['rule']}, {row['source']}]" if row["source"] else ""
    lines = [f"# {output.text(row['kind'])} {about} {what}{when} ({output.text(row['why'])}){by}"]
    return [*lines, *row["commands"], *([f"# {row['cannot']}"] if row["cannot"] else [])]
