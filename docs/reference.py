# SPDX-License-Identifier: GPL-2.0-or-later
"""The reference of policy keys in docs/policies.md, from the JSON Schema: `make docs`.

    python -m docs.reference docs/policies.md

Rewrites what stands below the marker in that file, and nothing above it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atfnd.policy.file.json_schema import json_schema

__all__ = ["MARKER", "NEEDED", "Key", "reference", "sections", "with_reference"]

Key = tuple[str, str, str, str]  # its name, what may stand there, default, meaning

NEEDED = "**needed**"  # as a default
MARKER = "<!-- From here on written by `make docs`. -->\n"
_SECTIONS = {  # as in a file: from the outside in
    "": "PolicyFile",
    "flows[]": "FlowEntry",
    "flows[].match": "MatchEntry",
    "flows[].placement": "PlacementEntry",
    "interfaces[]": "InterfaceEntry",
    "interfaces[].match": "InterfaceMatchEntry",
    "interfaces[].filters": "FiltersEntry",
    "forwarding[]": "ForwardingEntry",
    "forwarding[].match": "ForwardingMatchEntry",
    "forwarding[].placement": "PairPlacementEntry",
    "host": "HostEntry",
    "host.softirq_budget": "SoftirqBudgetEntry",
    "daemon": "DaemonEntry",
    "daemon.table": "TableEntry",
    "daemon.settle": "SettleEntry",
    "daemon.shares": "SharesEntry",
    "daemon.shares.user": "ShareEntry",
    "daemon.web": "WebEntry",
}


def sections() -> Iterator[tuple[str, str, list[Key]]]:
    """Each mapping of a file: where it stands ("" is the file), what it is, its keys."""
    schema = json_schema()
    mappings = {"PolicyFile": schema, **schema["$defs"]}
    for path, name in _SECTIONS.items():
        yield path, mappings[name]["description"], list(_keys(mappings[name]))


def reference() -> str:
    """A table of keys for each mapping."""
    return "\n".join(line for section in sections() for line in _table(*section))


def with_reference(text: str) -> str:
    """The page with its reference as it should be. ValueError: it has no marker."""
    guide, marker, _ = text.partition(MARKER)
    if not marker:
        raise ValueError("no marker to write below")
    return f"{guide}{MARKER}\n{reference()}"


def _table(path: str, about: str, keys: list[Key]) -> Iterator[str]:
    yield f"### `{path}`" if path else "### The file"
    yield f"{about}\n"
    yield "| key | value | default | |"
    yield "|---|---|---|---|"
    for key, *rest in keys:
        cells = (f"`{key}`", *rest)
        yield "| " + " | ".join(each.replace("|", "\\|") for each in cells) + " |"
    yield ""


def _keys(mapping: dict[str, Any]) -> Iterator[Key]:
    required = mapping.get("required", ())
    for key, value in mapping["properties"].items():
        default = _code(value["default"]) if "default" in value else ""
        default = NEEDED if key in required else default
        yield key, _value(value), default, value.get("description", "")


def _value(value: dict[str, Any]) -> str:
    """What may be written there, in few words."""
    match value:
        case {"anyOf": [dict(item), {"type": "array"}]}:
            return f"{_value(item)}; or a list"
        case {"examples": [*examples]}:
            return "such as " + ", ".join(map(_code, examples))
        case {"enum": [*words]}:
            return ", ".join(map(_code, words))
        case {"const": only}:
            return _code(only)
        case {"anyOf": [*choices]}:
            return " or ".join(map(_value, choices))
        case {"type": "array"}:
            return "a list of mappings"
        case {"type": "boolean"}:
            return "`true`, `false`"
        case {"type": "integer", "minimum": least}:
            return f"{least} or more"
        case {"type": "string"}:
            return "text"
        case _:
            return "a mapping"


def _code(value: object) -> str:
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(with_reference(page.read_text(encoding="utf-8")), encoding="utf-8")
