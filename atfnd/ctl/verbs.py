# SPDX-License-Identifier: GPL-2.0-or-later
"""One function per verb of atfnctl. Each asks the API and shows the answer, nothing more."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer

from atfnd.ctl import completion, output, tables
from atfnd.ctl.client import Client, Row
from atfnd.ctl.columns import Grid
from atfnd.ctl.duration import seconds_of
from atfnd.ctl.empty import explained, no_events, no_filters
from atfnd.ctl.events import Selected, event_lines, folded
from atfnd.ctl.gain import say_gain
from atfnd.ctl.help import Program
from atfnd.ctl.pairs import pair_named, say_pairs
from atfnd.ctl.version import Version
from atfnd.errors import OperatorError

__all__ = ["app"]

SOCKET = "/run/atfnd/atfnd.sock"
ROWS = 200  # of a table, by default
UNSTEERED = "local", "left"  # states of flows without an entry
AGAIN_S = 0.25
BEATS_S = 20.0  # a stream says something every 5 s

SEE = "See what happens"
PARTS = "See what there is"
PAYS = "Find out whether it pays"
CHANGE = "Change an interface"
POLICY = "Work on the policy"

app = Program()

Socket = Annotated[
    str, typer.Option(envvar="ATFND_SOCKET", metavar="PATH", help="The daemon's socket.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OnlyNic = Annotated[
    str | None,
    typer.Option(
        "--nic", metavar="NIC", help="Only this interface.", autocompletion=completion.nics
    ),
]
Unsteered = Annotated[
    bool,
    typer.Option("--all", help="Also flows without an entry: `local` ones need none."),
]
Limit = Annotated[int | None, typer.Option(min=1, metavar="N", help="The most rows to print.")]
Interval = Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="Time between updates.")]
Interface = Annotated[
    str,
    typer.Argument(
        metavar="NIC",
        help="The interface, as `atfnctl nics` names it.",
        autocompletion=completion.nics,
    ),
]
OneOrAll = Annotated[
    str | None,
    typer.Argument(metavar="NIC", help="Default: all.", autocompletion=completion.nics),
]


@app.callback()
def atfnctl(version: Version = False) -> None:
    """Show what atfnd does; arm, disarm, pause, resume and restore its interfaces."""


@app.verb(SEE)
def status(socket: Socket = SOCKET, as_json: Json = False) -> None:
    """Summary of the daemon: observer, armed interfaces, table, losses."""
    answer = Client(socket).get("/v1/status")
    output.say_json(answer) if as_json else output.show(tables.status_table(answer))


@app.verb(SEE)
def flows(
    state: Annotated[
        str | None,
        typer.Option(
            metavar="STATE",
            help="Only wanted, observed, steered, ...",
            autocompletion=completion.flow_states,
        ),
    ] = None,
    unsteered: Unsteered = False,
    nic: OnlyNic = None,
    pid: Annotated[
        int | None, typer.Option(min=1, metavar="PID", help="Only this process.")
    ] = None,
    comm: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="Only threads of this name, a shell pattern."),
    ] = None,
    limit: Limit = None,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat until Ctrl-C.")] = False,
    interval: Interval = 1.0,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """The Flow-to-Core table: which thread, which queue, which CPU, and why."""
    if watch and as_json:
        raise OperatorError("--watch shows a table, not JSON", "leave one of them out")
    client = Client(socket)
    only = {"state": state, "nic": nic, "pid": pid, "comm": comm}

    def why() -> str | None:
        empty: str | None = client.get("/v1/flows", limit=1, **only)["why_empty"]
        return empty

    def read(most: int | None) -> Iterator[Row]:
        if unsteered or state in UNSTEERED:
            return islice(client.flows(**only, all=1), most)
        return client.pages("/v1/flows", "flows", most, **only)

    def table(rows: Iterable[Row]) -> Grid:
        return explained(tables.flow_table(rows), why)

    most = limit or ROWS
    if watch:
        output.watch(lambda: table(read(most)), interval)
    elif as_json:
        output.say_json_list(read(limit))
    else:
        rows = list(read(most + 1))
        output.show(table(rows[:most]))
        _say_more(rows, most)


@app.verb(SEE)
def explain(
    flow: Annotated[
        list[str],
        typer.Argument(
            metavar="FLOW",
            help="`tcp LOCAL:PORT REMOTE:PORT`, `LOCAL:PORT-REMOTE:PORT`, `:PORT`, `cookie:NUMBER`",
        ),
    ],
    pair: Annotated[
        bool,
        typer.Option(
            "--pair",
            help="Forwarded packets: two words, `IN` and `OUT`, each `NIC` or `NIC:QUEUE`.",
        ),
    ] = False,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Why the packets of a flow arrive where they do, or a table if several flows match; exit 1 if
    there is none. With --pair, why forwarded packets are handled where they are."""
    client = Client(socket)
    if pair:
        answer = client.look("/v1/pairs/explain", **pair_named(flow))
    else:
        answer = client.get("/v1/explain", flow=" ".join(flow))
    output.say_json(answer) if as_json else tables.say_explanation(answer)
    if answer["pair" if pair else "flow"] is None and not answer.get("flows"):
        raise typer.Exit(1)


@app.verb(PARTS)
def queues(nic: OnlyNic = None, socket: Socket = SOCKET, as_json: Json = False) -> None:
    """Receive queues: interrupt or thread, CPU, and how packets were assigned to them."""
    answer = Client(socket).get("/v1/queues", nic=nic)
    if as_json:
        output.say_json(answer["queues"])
    else:
        output.show(explained(tables.queue_table(answer["queues"]), lambda: answer["why_empty"]))


@app.verb(PARTS)
def nics(socket: Socket = SOCKET, as_json: Json = False) -> None:
    """Interfaces, what they can do, and whether they are armed."""
    answer = Client(socket).get("/v1/nics")
    if as_json:
        output.say_json(answer["nics"])
    else:
        output.show(explained(tables.nic_table(answer["nics"]), lambda: answer["why_empty"]))


@app.verb(PARTS)
def filters(
    nic: OnlyNic = None,
    limit: Limit = None,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Filters in the interfaces, ours and others', in the order they are tried."""
    client = Client(socket)
    names = [nic] if nic else [row["nic"] for row in client.get("/v1/nics")["nics"]]
    rows = (row for name in names for row in client.pages("/v1/filters", "filters", nic=name))

    def why() -> str:
        return no_filters(client.get("/v1/nics"), names)

    if as_json:
        output.say_json_list(islice(rows, limit))
    else:
        most = limit or ROWS
        shown = list(islice(rows, most + 1))
        output.show(explained(tables.filter_table(shown[:most]), why))
        _say_more(shown, most)


@app.verb(PARTS)
def topology(socket: Socket = SOCKET, as_json: Json = False) -> None:
    """CPUs, what they share, the queues delivered on them; NUMA nodes and their interfaces."""
    answer = Client(socket).get("/v1/topology")
    if as_json:
        output.say_json(answer["cpus"])
        return
    output.show(tables.topology_table(answer["cpus"]))
    if answer["nodes"]:
        output.show(tables.node_table(answer["nodes"]))


@app.verb(PAYS)
def doctor(
    nic: Annotated[
        str | None,
        typer.Argument(
            metavar="NIC", help="Observed or not.", autocompletion=completion.interfaces_here
        ),
    ] = None,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """What atfnd can do, what prevents it, and what to do; exit 1 if something prevents it."""
    answer = Client(socket).get("/v1/doctor", nic=nic)
    output.say_json(answer) if as_json else tables.say_findings(answer)
    if not answer["clear"]:
        raise typer.Exit(1)


@app.verb(PAYS)
def gain(
    nic: OneOrAll = None,
    total: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long to look: `30s`, `1m` at most.")
    ] = "10s",
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """What arming would gain: how far from its packets each application reads, which threads stay
    on a CPU, and advice for each interface. Only looks, for some seconds."""
    seconds = seconds_of(total)
    if sys.stderr.isatty():
        print(f"looking for {seconds} s ...", file=sys.stderr)
    answer = Client(socket).look("/v1/gain", nic=nic, seconds=seconds)
    output.say_json(answer) if as_json else say_gain(answer)


@app.verb(SEE)
def pairs(
    nic: Annotated[
        str | None,
        typer.Argument(
            metavar="NIC", help="In or out there. Default: all.", autocompletion=completion.nics
        ),
    ] = None,
    total: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long to count: `10s`, `1m` at most.")
    ] = "2s",
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Forwarded packets: from which interface to which TX queue, on which CPU, and how far that is
    from the CPU of the TX queue. Only counts, for some seconds."""
    seconds = seconds_of(total)
    if sys.stderr.isatty():
        print(f"counting for {seconds} s ...", file=sys.stderr)
    answer = Client(socket).look("/v1/pairs", nic=nic, seconds=seconds)
    output.say_json(answer) if as_json else say_pairs(answer)


@app.verb(SEE)
def events(
    after: Annotated[
        int, typer.Option(min=0, metavar="SEQ", help="Only events after this one.")
    ] = 0,
    nic: OnlyNic = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND",
            help="Only insert, arm, ...; repeatable.",
            autocompletion=completion.event_kinds,
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Only the last `90s`, `10m`, `2h`.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Only the newest.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more.")] = False,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """What the daemon did and noticed, and why; a repeat is a number (×3) at the last one. --json
    has each, --json --follow prints one object per line."""
    client = Client(socket)
    since_s = None if since is None else time.time() - seconds_of(since)
    wanted = Selected(nic, kind or (), since_s)
    if follow:
        _say_as_they_come(client, after, wanted, limit, as_json)
        return
    rows = filter(wanted.takes, client.events(after))
    if as_json:
        output.say_json_list(rows if limit is None else deque(rows, limit))
        return
    shown = folded(rows)[-(limit or 0) :]
    width = output.width()
    for each in shown:
        for line in event_lines(each.row, each.times, width):
            output.say(line)
    if not shown:
        only = {"nic": nic, "kind": kind, "since": since, "after": after or None}
        kept = sum(1 for _ in client.events())
        output.say_empty(no_events(kept, client.get("/v1/status"), only))


def _say_as_they_come(
    client: Client, after: int, wanted: Selected, limit: int | None, as_json: bool
) -> None:
    """Each event, until Ctrl-C; with a limit, of those that are there the newest."""
    width = output.width()

    def say(row: Row) -> None:
        for line in [json.dumps(row)] if as_json else event_lines(row, 1, width):
            output.say(line)

    try:
        if limit is not None:
            there = list(client.events(after))
            after = there[-1]["seq"] if there else after
            for row in deque(filter(wanted.takes, there), limit):
                say(row)
        for row in filter(wanted.takes, _follow(client, after)):
            say(row)
    except KeyboardInterrupt:
        return


def _follow(client: Client, after: int) -> Iterator[Row]:
    """As `Client.events`, without end; a daemon that started again counts from 1."""
    since = None
    while True:
        known = client.get("/v1/events", after=after, limit=1)["since_wall_s"]
        if since not in (None, known):
            after = 0
        since = known
        for row in _streamed(client, after):
            yield row
            after = row["seq"]
        time.sleep(AGAIN_S)


def _streamed(client: Client, after: int) -> Iterator[Row]:
    """Until the daemon ends: server-sent events, whose data is one line each."""
    for line in client.lines("/v1/events/stream", BEATS_S, after=after):
        field, _, value = line.decode().partition(": ")
        if field != "data":
            continue
        row = json.loads(value)
        if "seq" in row:
            yield row
        else:
            print(f"atfnd: {row['count']} events were not retained", file=sys.stderr)


@app.verb(CHANGE)
def arm(nic: Interface, socket: Socket = SOCKET, as_json: Json = False) -> None:
    """Allow atfnd to change this interface."""
    _order(nic, "arm", "is armed", socket, as_json)


@app.verb(CHANGE)
def disarm(
    nic: OneOrAll = None,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Stop every change of this interface, or of all, at once; filters stay. Holds until `arm`,
    also after a restart and for interfaces that appear later."""
    if nic is not None:
        _order(nic, "disarm", "is disarmed", socket, as_json)
        return
    answer = Client(socket).post("/v1/disarm")
    output.say_json(answer) if as_json else output.say("every interface is disarmed")


@app.verb(CHANGE)
def pause(nic: Interface, socket: Socket = SOCKET, as_json: Json = False) -> None:
    """Delete our filters and restore settings, for `ethtool -L` or a driver update."""
    _order(nic, "pause", "is paused: nothing of ours is in it", socket, as_json)


@app.verb(CHANGE)
def resume(nic: Interface, socket: Socket = SOCKET, as_json: Json = False) -> None:
    """End a pause and steer again if armed; set again what another program changed."""
    _order(nic, "resume", "is resumed", socket, as_json)


@app.verb(CHANGE)
def restore(
    nic: OneOrAll = None,
    socket: Socket = SOCKET,
    as_json: Json = False,
) -> None:
    """Disarm, delete our filters and restore settings, except those that another program changed
    since. Exit 1 if something could not be restored."""
    client = Client(socket)
    names = [nic] if nic else [row["nic"] for row in client.get("/v1/nics")["nics"]]
    answers = [client.order(name, "restore") for name in names]
    if as_json:
        output.say_json(answers)
    for answer in () if as_json else answers:
        for row in answer["restored"]:
            output.say(f"{answer['nic']}: {row['what']} {row['left']}")
        state = "nothing of ours is in it" if answer["clear"] else "something of ours is left"
        output.say(f"{answer['nic']} is disarmed: {state}")
    if not all(answer["clear"] for answer in answers):
        raise typer.Exit(1)


def _order(nic: str, verb: str, done: str, socket: str, as_json: bool) -> None:
    answer = Client(socket).order(nic, verb)
    if as_json:
        output.say_json(answer)
        return
    unarmed = verb == "resume" and not answer["armed"]
    output.say(f"{nic} {done}{'; it is not armed, as before' if unarmed else ''}")


def _say_more(rows: list[Row], most: int) -> None:
    if len(rows) > most:
        print(f"the first {most}; more with --limit, all with --json", file=sys.stderr)
