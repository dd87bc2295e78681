# SPDX-License-Identifier: GPL-2.0-or-later
"""One frame: figures and view to lines of a width and a number. Pure.

From above: a line on the daemon, what holds of the view, CPUs, queues, flows, the flow at hand,
moves, keys. Flows have what the others leave.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from rich.cells import set_cell_size
from rich.style import Style
from rich.text import Text

from atfnd.ctl.client import Row
from atfnd.ctl.columns import wrapped
from atfnd.ctl.events import folded, repeats
from atfnd.ctl.output import text
from atfnd.ctl.top.cells import AT, BAD, BOLD, FAINT, GOOD, HEAD, bar, rate
from atfnd.ctl.top.figures import CpuFigure, Figures, FlowFigure, QueueFigure
from atfnd.ctl.top.forwarded import forwarded_lines, how_forwarded
from atfnd.ctl.top.view import COLUMNS, HELP, Column, View, fitting, shown

__all__ = ["Size", "flow_lines", "frame", "page"]

_KEYS = "q quit  / filter  < > sort  r reverse  p pause  a all  f forwarded  h help"
_MEANS = (
    ("# and |, net and app", "softirqs and NAPI threads; all else that kept a CPU busy"),
    ("BIT/S", "what the application has moved; - until it was read twice"),
    ("CPU", "where the application uses it"),
    ("RXQ, RX, TO", "queue and CPU its packets arrive on; the CPU they should"),
    ("RXQ, CPU, TXQ, TX", "of forwarded packets: received, sent, taken back by this CPU"),
    ("PLACED, WHY", "whether the policy has what it asks for, and why"),
)
_CELL = 40  # columns of a CPU or a queue
_BAR = 10
_NAME = 12  # of a queue
_OLD_S = 1.5  # a table that takes long to read is read less often
_PAGE = 160  # without a terminal, CPUs and queues take no more


class Size(NamedTuple):
    """Of the terminal, in cells."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class _Room:
    """Lines of each part; the others have one, or what they need."""

    cpus: int
    queues: int
    moves: int
    flows: int


def flow_lines(figures: Figures, size: Size) -> int:
    """How many flows are shown at a time."""
    return _room(figures, size).flows


def _room(figures: Figures, size: Size) -> _Room:
    across = max(1, size.width // _CELL)
    most = max(1, size.height // 6)
    cpus = min(most, -(-len(figures.cpus) // across))
    queues = min(most, -(-len(figures.queues) // across))
    moves = min(len(_moves(figures)), max(1, size.height // 8))
    others = 2 + cpus + queues + 1 + 2 + (moves + 1) + 1
    return _Room(cpus, queues, moves, max(1, size.height - others))


def frame(
    figures: Figures,
    flows: Sequence[FlowFigure],
    view: View,
    trouble: str,
    size: Size,
    forwarded: Row | None = None,
) -> list[Text]:
    """Exactly `size.height` lines of exactly `size.width` cells. `flows` are those of the view, in
    its order, and the view is within them, or within the forwarded pairs (`View.within`).
    `trouble`: why there is nothing newer. `forwarded`: None, not asked for."""
    room = _room(figures, size)
    holds = _holds(figures, len(flows), view, trouble)
    if view.forwarded and not trouble:
        holds = Text(how_forwarded(forwarded) + "  PAUSED" * view.paused)
    lines = [_daemon(figures, size.width), holds]
    if view.help:
        lines += [Text(f"  {what:<32}{means}") for what, means in (*HELP, ("", ""), *_MEANS)]
        lines += _left_out(flows, size.width)
    else:
        cpus, queues = _chosen_cpus(figures, room, size), _chosen_queues(figures, room, size)
        lines += _cells(map(_cpu, cpus), size.width)
        lines += _cells(map(_queue, queues), size.width)
        if view.forwarded:
            lines += forwarded_lines(forwarded, view, room.flows)
        else:
            lines += _table(flows, view, room.flows, size.width)
            lines += _at_hand(flows, view, size.width)
        lines.append(Text("LAST MOVES", HEAD))
        lines += _moves(figures)[: room.moves]
    lines = lines[: size.height - 1]
    lines += [Text("")] * (size.height - 1 - len(lines))
    lines.append(Text(_KEYS, FAINT))
    return [_fitted(line, size.width) for line in lines]


def page(figures: Figures, width: int) -> list[Text]:
    """All figures, without a view and keys, on as many lines as needed."""
    flows = shown(figures.flows, View())
    lines = [_daemon(figures, width)]
    lines += _cells(map(_cpu, figures.cpus), min(width, _PAGE))
    lines += _cells(map(_queue, figures.queues), min(width, _PAGE))
    lines += _table(flows, View(at=-1), len(flows), width)
    lines += [Text("LAST MOVES", HEAD), *_moves(figures)]
    for line in lines:
        line.truncate(width)
        line.rstrip()
    return lines


def _fitted(line: Text, width: int) -> Text:
    """The last style goes on to the border where it is the header's."""
    line = line.copy()
    line.truncate(width, pad=True)
    return line


def _left_out(flows: Sequence[FlowFigure], width: int) -> list[Text]:
    shown_names = {column.name for column in fitting(width, flows)}
    missing = [column.name for column in COLUMNS if column.name not in shown_names]
    said = f"left out at this width: {', '.join(missing)}"
    return [Text(f"  {line}") for line in wrapped(said, width - 2, "", "  ")] if missing else []


def _daemon(figures: Figures, width: int) -> Text:
    """Without the version, and with the number of interfaces, where their names do not fit."""
    status = figures.status
    flows, placed = len(figures.flows), sum(flow.placed is True for flow in figures.flows)
    known = [flow.bits_per_s for flow in figures.flows if flow.bits_per_s is not None]
    locality = "-" if status["locality"] is None else f"{status['locality']:.0%}"
    nics = sorted({queue.nic for queue in figures.queues})
    how = dict.fromkeys(status["armed"], "armed") | dict.fromkeys(status["disarmed"], "disarmed")
    stands = ", ".join(f"{nic} {how.get(nic, 'observed')}" for nic in nics)
    armed = sum(nic in status["armed"] for nic in nics)
    middle = [
        f"{flows} flow{'s' * (flows != 1)}, {placed} placed",
        f"{rate(sum(known) if known else None)}bit/s",
        f"locality {locality}",
    ]
    name, counted = f"atfnd {status['version']}", f"{armed} of {len(nics)} armed"
    forms = [[name, *middle, stands], ["atfnd", *middle, stands], ["atfnd", *middle, counted]]
    lines = [Text("  ".join(map(text, form)), BOLD) for form in forms]
    return next((line for line in lines if line.cell_len <= width), lines[-1])


def _holds(figures: Figures, found: int, view: View, trouble: str) -> Text:
    if trouble:
        return Text(text(trouble), BAD)
    of_all = f"{found} of {len(figures.flows)}"
    if view.typed is not None:
        return Text(f"filter: {text(view.typed)}_  ({of_all}; Enter keeps, Esc drops)", BOLD)
    column = COLUMNS[view.column]
    words = [f"by {column.name}{', turned' if view.turned else ''}"]
    words += [f"flows of {figures.flows_age_s:.0f} s ago"] if figures.flows_age_s >= _OLD_S else []
    words += [f"only {text(view.words)!r}: {of_all}"] if view.words else []
    words += ["all flows"] if view.unsteered else []
    words += ["PAUSED"] if view.paused else []
    return Text("  ".join(words))


def _cells(cells: Iterable[Text], width: int) -> list[Text]:
    """As many side by side as there is room for."""
    across = max(1, width // _CELL)
    lines: list[Text] = []
    for n, cell in enumerate(cells):
        cell.truncate(_CELL - 1, pad=True)
        if n % across:
            lines[-1].append(" ").append_text(cell)
        else:
            lines.append(cell)
    return lines


def _chosen_cpus(figures: Figures, room: _Room, size: Size) -> Sequence[CpuFigure]:
    """All, or the busiest of them, by number."""
    most = room.cpus * max(1, size.width // _CELL)
    busy = sorted(
        figures.cpus, key=lambda each: (each.network or 0) + (each.application or 0), reverse=True
    )
    return sorted(busy[:most], key=lambda each: each.cpu)


def _chosen_queues(figures: Figures, room: _Room, size: Size) -> Sequence[QueueFigure]:
    most = room.queues * max(1, size.width // _CELL)
    busy = sorted(figures.queues, key=lambda each: each.packets_per_s or 0, reverse=True)
    return sorted(busy[:most], key=lambda each: (each.nic, each.queue))


def _cpu(figure: CpuFigure) -> Text:
    """`#` is the network's time, `|` the applications'."""
    line = Text(f"CPU {figure.cpu:<3} [")
    network, application = bar(figure.network, figure.application, _BAR)
    line.append("#" * network, GOOD).append("|" * application, Style(color="blue"))
    line.append("." * (_BAR - network - application), FAINT)
    net, app = (
        "-" if each is None else f"{each:.0%}" for each in (figure.network, figure.application)
    )
    return line.append(f"] net {net:>4} app {app:>4}")


def _queue(figure: QueueFigure) -> Text:
    cpu = "-" if figure.cpu is None else figure.cpu
    number = f"/{figure.queue}"
    name = text(figure.nic)[: _NAME - len(number)] + number
    speed = f"{rate(figure.packets_per_s):>5}pkt/s {rate(figure.bits_per_s):>5}b/s"
    return Text(f"{set_cell_size(name, _NAME)} CPU {cpu:<3}{speed}")


def _table(flows: Sequence[FlowFigure], view: View, lines: int, width: int) -> list[Text]:
    columns = fitting(width, flows[view.first : view.first + lines])
    head = Text("", HEAD)
    for column in columns:
        name = column.name + ("^" if view.turned else "v") * (
            column.name == COLUMNS[view.column].name
        )
        head.append(_cell(name, column, width) + " ")
    head.truncate(width, pad=True)
    found = [head]
    for number in range(view.first, view.first + lines):
        if number >= len(flows):
            found.append(Text(""))
            continue
        flow = flows[number]
        values = " ".join(_cell(_value(column, flow), column, width) for column in columns)
        bad = Style() if flow.placed is not False else BAD
        found.append(Text(values, AT if number == view.at else bad))
    return found


def _value(column: Column, flow: FlowFigure) -> str:
    return rate(flow.bits_per_s) if column.name == "BIT/S" else text(column.of(flow))


def _cell(value: str, column: Column, width: int) -> str:
    if not column.width:
        return set_cell_size(value, width)  # longer text is cut off with the line
    if column.number:
        value = value.rjust(column.width)
    return set_cell_size(value, column.width)


def _at_hand(flows: Sequence[FlowFigure], view: View, width: int) -> list[Text]:
    """A flow in full, on a line more where its addresses are long."""
    if not flows:
        return [Text("no flow" + (" has these words" if view.wanted else ""), FAINT), Text("")]
    flow = flows[view.at]
    near = f"{view.at + 1}/{len(flows)}  {text(flow.proto)} {text(flow.local)}"
    far = f"<- {text(flow.remote)}  {text(flow.nic)}  {text(flow.state)}  [{text(flow.rule)}]"
    both = Text(f"{near} {far}")
    where = [both] if both.cell_len <= width else [Text(near), Text(f"  {far}")]
    return [*where, Text(f"  {text(flow.why)}")]


def _moves(figures: Figures) -> list[Text]:
    """A line for each move, the last one first; what repeats is one."""
    return [_move(*each) for each in reversed(folded(reversed(figures.moves)))]


def _move(event: Row, times: int) -> Text:
    about = event["flow"] if event["flow"] is not None else event["nic"]
    at = datetime.fromisoformat(event["time"]).astimezone()
    line = Text().append(f"{at:%H:%M:%S} ", FAINT)
    bad = event["kind"] in ("violated", "unproven", "no effect")
    line.append(f"{text(event['kind']):<9} ", BAD if bad else GOOD)
    line.append(f"{text(about)}  {text(event['what'])}  ({text(event['why'])})")
    return line.append(f"  {repeats(event, times)}" * (times > 1))
