# SPDX-License-Identifier: GPL-2.0-or-later
"""What `--help` prints: verbs grouped by what one wants to do, never cut, and no Python type."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import Default

__all__ = ["Program", "Verb", "Verbs", "groups", "record"]

Function = TypeVar("Function", bound=Callable[..., Any])

_LEFT_WIDTH = 20  # of the names of verbs, options and arguments, where they fit


class Verb(TyperCommand):
    """A verb whose help names each value by its metavar."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _plain(super().collect_usage_pieces(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        _write_parameters(self, ctx, formatter)


class Verbs(TyperGroup):
    """A program, or a verb with verbs of its own."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return _plain(super().collect_usage_pieces(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title, verbs in groups(self).items():
            with formatter.section(title):
                rows = [(verb.name, _first_sentence(verb.help or "")) for verb in verbs]
                formatter.write_dl(rows, col_max=_LEFT_WIDTH)
        _write_parameters(self, ctx, formatter)


class Program(typer.Typer):
    """Verbs, whose help is plain text: it is piped, searched and read in narrow terminals."""

    def __init__(self, about: str | None = None) -> None:
        super().__init__(
            cls=Verbs,
            help=Default(None) if about is None else about,  # then the callback's docstring
            no_args_is_help=True,
            rich_markup_mode=None,
            pretty_exceptions_enable=False,
        )

    def verb(
        self, aim: str, name: str | None = None, *, hidden: bool = False
    ) -> Callable[[Function], Function]:
        """Decorates what a verb does. `aim`: the heading of its group in the help."""
        return self.command(name, cls=Verb, rich_help_panel=aim, hidden=hidden)


def groups(program: Any) -> dict[str, list[Any]]:
    """The heading of each group and its verbs, both in the order in which they were added."""
    found: dict[str, list[Any]] = {}
    for verb in program.commands.values():
        if not verb.hidden:
            aim = getattr(verb, "rich_help_panel", None)
            found.setdefault(aim if isinstance(aim, str) else "Commands", []).append(verb)
    return found


def record(parameter: Any, context: Any) -> tuple[str, str] | None:
    """What one writes and what it means. Typer adds its type to an argument (`NIC <str>`), also to
    one with a metavar. None: it is hidden."""
    found = parameter.get_help_record(context)
    if found is None:
        return None
    name, meaning = found
    if parameter.param_type_name == "argument":
        name = name.partition(" <")[0]
    return name, meaning


def _write_parameters(command: Any, context: Any, formatter: Any) -> None:
    """First the arguments, then the options."""
    parameters = command.get_params(context)
    for title, kind in (("Arguments", "argument"), ("Options", "option")):
        of_kind = (record(each, context) for each in parameters if each.param_type_name == kind)
        if rows := [row for row in of_kind if row is not None]:
            with formatter.section(title):
                formatter.write_dl(rows)


def _plain(pieces: list[str]) -> list[str]:
    """Without braces around what must be there: man pages have none."""
    return [re.sub(r"[{}]", "", piece) for piece in pieces]


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?!])\s", " ".join(text.split()), maxsplit=1)[0].removesuffix(".")
