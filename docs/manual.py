# SPDX-License-Identifier: GPL-2.0-or-later
"""The man pages, from what `--help` prints and the JSON Schema says: `make man`.

    python -m docs.manual FOLDER EXAMPLE

Writes atfnd.8, atfnctl.1 and atfnd.yaml.5 there; EXAMPLE is a policy file to show. man(7).
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.main import get_command

from atfnd import __version__
from atfnd.cli.commands import app as atfnd
from atfnd.ctl.help import groups, record
from atfnd.ctl.top.verb import app as atfnctl
from docs.examples import EXAMPLES
from docs.reference import NEEDED, sections

__all__ = ["narrowed", "pages"]

_FILES = {
    "/etc/atfnd/atfnd.yaml": "The policy: atfnd.yaml(5).",
    "/etc/atfnd/policies.d/*.yaml": "More policy files, read in the order of their names.",
    "/etc/atfnd/policies/": "Example policies; read only if you copy them to policies.d.",
    "/run/atfnd/atfnd.sock": "The socket for atfnctl(1). Group atfnd may read.",
    "/run/atfnd/atfnd-root.sock": "The same, for root alone.",
    "/run/atfnd/*.journal": "What atfnd wrote to the NICs, and the original values.",
    "/usr/share/doc/atfnd/": "The documents (docs/), a dashboard and alert rules; below "
    "/usr/local after `make install`.",
}
_SIGNALS = {
    "SIGHUP": "Read the policy again, as `atfnctl reload` does; a wrong one changes nothing.",
    "SIGTERM, SIGINT": "Stop. Filters stay in the NICs, and the next start takes them over, unless "
    "the policy says `on_stop: restore`.",
}
_EXIT = {
    "0": "Done.",
    "1": "Refused, or the answer is no.",
    "2": "Wrong usage, or a mistake in a policy; its file, line and column are printed.",
    "3": "The daemon cannot be reached (atfnctl).",
}
_ENVIRONMENT = {
    "NOTIFY_SOCKET, WATCHDOG_USEC": "See sd_notify(3). The daemon reports when it is ready, "
    "when it reloads or stops, and with every round of its periodic tasks that it is alive."
}
_SERVICE = (
    "The service runs `atfnd run --nic '*'`. It observes every interface that has a device, and "
    "changes those that the policy or `atfnctl arm` arms. `systemctl edit atfnd` changes options. "
    "`systemctl reload atfnd` reads the policy again, and fails with the mistake if it is wrong."
)
_COLUMNS = 80
_INDENTED = 7  # by man(7), below a heading

_SEE = {
    "atfnd.8": "atfnctl(1), atfnd.yaml(5), ethtool(8), systemd.service(5)",
    "atfnctl.1": "atfnd(8), atfnd.yaml(5), ethtool(8)",
    "atfnd.yaml.5": "atfnd(8), atfnctl(1)",
}


def pages(example: str) -> dict[str, str]:
    """File names and their roff. `example`: a policy file."""
    daemon = [*_command("atfnd", atfnd), *_section("The service"), *_text(_SERVICE)]
    daemon += [*_terms("Signals", _SIGNALS), *_terms("Environment", _ENVIRONMENT)]
    daemon += [*_terms("Files", _FILES), *_examples("atfnd.8")]
    bodies = {
        "atfnd.8": daemon,
        "atfnctl.1": [*_command("atfnctl", atfnctl), *_examples("atfnctl.1")],
        "atfnd.yaml.5": _format(example),
    }
    return {name: _page(name, body) for name, body in bodies.items()}


def _page(name: str, body: list[str]) -> str:
    title, _, section = name.rpartition(".")
    head = ['.\\" From --help and the JSON Schema, by `make man`.']
    head += [f'.TH {_quoted(title)} {section} "" "atfnd {__version__}" "atfnd"']
    return "\n".join([*head, *body, *_section("See also"), *_text(_SEE[name])]) + "\n"


def _command(name: str, app: typer.Typer) -> list[str]:
    """A program: its verbs with their arguments and options, grouped as --help has them."""
    group: Any = get_command(app)
    context = group.make_context(name, [], resilient_parsing=True)
    grouped = {title: list(_verbs(verbs, context)) for title, verbs in groups(group).items()}
    lines = [*_section("Name"), f"{_roff(name)} \\- {_roff(_clause(group.help))}"]
    lines += _section("Synopsis")
    for each, inner in (verb for verbs in grouped.values() for verb in verbs):
        usage = " ".join(each.collect_usage_pieces(inner))
        lines += [f".B {_roff(inner.command_path)}", _roff(usage), ".br"]
    lines += [*_section("Description"), *_text(group.help)]
    for title, verbs in grouped.items():
        lines += _section(f"Commands: {title}")
        for each, inner in verbs:
            path = inner.command_path.removeprefix(f"{name} ")
            lines += [f".SS {_quoted(path)}", *_text(each.help), *_records(each.params, inner)]
    lines += [*_section("Options"), *_records(group.params, context)]
    return [*lines, *_terms("Exit status", _EXIT)]


def _verbs(verbs: list[Any], context: Any) -> Iterator[tuple[Any, Any]]:
    """Commands and their contexts, groups opened."""
    for each in verbs:
        inner = type(context)(each, info_name=each.name, parent=context)
        if hasattr(each, "commands"):
            yield from _verbs(list(each.commands.values()), inner)
        else:
            yield each, inner


def _records(parameters: list[Any], context: Any) -> Iterator[str]:
    for each in parameters:
        if (said := record(each, context)) is not None:
            yield from _term(*said)


def _examples(page: str) -> Iterator[str]:
    yield from _section("Examples")
    for what_for, commands in EXAMPLES[page].items():
        shown = (f"\\fB{_roff(command)}\\fR" for command in commands)
        yield from [".PP", *_text(what_for), ".PP", ".RS 4", ".nf", *shown, ".fi", ".RE"]


def _format(example: str) -> list[str]:
    """The policy file: each mapping, its keys, their values and defaults."""
    lines = [*_section("Name"), f"{_roff('atfnd.yaml')} \\- which flows atfnd steers, and how"]
    lines += [*_section("Synopsis"), ".I /etc/atfnd/atfnd.yaml", ".br"]
    lines += [".I /etc/atfnd/policies.d/*.yaml"]
    for path, about, keys in sections():
        lines += [*_section(path or "The file"), *_text(about)]
        for key, value, default, meaning in keys:
            said = f" Default: {default}." if default else ""
            said = " Needed." if default == NEEDED else said
            lines += _term(key, f"{value}.{said} {meaning}")
    shown = [_roff(line) for line in narrowed(example, _COLUMNS - _INDENTED)]
    return [*lines, *_section("Example"), ".nf", *shown, ".fi"]


def narrowed(example: str, columns: int) -> Iterator[str]:
    """The same YAML in lines that are no longer: a comment behind a value goes above it, a comment
    or a plain text is broken. A line that is neither stays as it is."""
    for line in example.splitlines():
        if len(line) <= columns:
            yield line
            continue
        indent = line[: len(line) - len(line.lstrip())]
        value, _, comment = line.partition(" # ") if "#" in line else (line, "", "")
        if line.lstrip().startswith("#"):
            value, comment = "", line.lstrip("# ")
        begin = f"{indent}# "
        yield from textwrap.wrap(
            comment,
            columns,
            initial_indent=begin,
            subsequent_indent=begin,
            break_on_hyphens=False,
            break_long_words=False,
        )
        plain = re.fullmatch(r"\s*\w+: [A-Za-z][^:]*", value)
        if value and plain and len(value.rstrip()) > columns:
            yield from textwrap.wrap(value, columns, subsequent_indent=f"{indent}  ")
        elif value:
            yield value.rstrip()


def _section(title: str) -> list[str]:
    return [f".SH {_quoted(title.upper() if title[0].isupper() else title)}"]


def _terms(title: str, terms: dict[str, str]) -> list[str]:
    return [*_section(title), *(line for term in terms.items() for line in _term(*term))]


def _term(term: str, meaning: str) -> list[str]:
    return [".TP", f"\\fB{_roff(term)}\\fR", *(_text(meaning) or ["\\&"])]


def _text(text: str) -> list[str]:
    return [_roff(" ".join(part.split())) for part in text.strip().split("\n\n") if part]


def _clause(text: str) -> str:
    """For whatis(1): no capital, no full stop."""
    first = re.split(r"\.\s|\.$", text.strip(), maxsplit=1)[0]
    return first[0].lower() + first[1:]


def _roff(text: str) -> str:
    """Nothing in it is a request or an escape; `this` is bold."""
    plain = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    plain = plain.replace("~", "\\(ti").replace("^", "\\(ha")
    plain = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", plain)
    return f"\\&{plain}" if plain.startswith((".", "'")) else plain


def _quoted(text: str) -> str:
    return f'"{_roff(text)}"'


if __name__ == "__main__":
    folder, example = Path(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    for name, page in pages(example.read_text(encoding="utf-8")).items():
        (folder / name).write_text(page, encoding="utf-8")
