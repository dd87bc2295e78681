# SPDX-License-Identifier: GPL-2.0-or-later
"""The JSON Schema (2020-12) of a policy file, made from the classes that read it.

What it refuses, `atfnd check` refuses too; not the other way round: that a range is empty, or a
name given twice, no schema tells.
"""

from __future__ import annotations

from typing import Any

from atfnd.policy.describe import KEYS, MAPPINGS
from atfnd.policy.schema import PolicyFile
from atfnd.policy.shape import QUANTITIES
from atfnd.policy.units import in_words

__all__ = ["json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """As `json.dumps` takes it."""
    made = PolicyFile.model_json_schema()
    mappings: dict[str, Any] = {"PolicyFile": made, **made["$defs"]}
    for name, mapping in mappings.items():
        for key, value in mapping.get("properties", {}).items():
            _as_written(value, ("leave", "auto") if key == "placement" else ())
            if said := KEYS.get(name, {}).get(key):
                value["description"] = said
        mapping.pop("title", None)
        if said := MAPPINGS.get(name):
            mapping["description"] = said
    made["$defs"]["MatchEntry"]["minProperties"] = 1
    ways = [{"required": [way]} for way in ("near", "cpus", "dedicated")]
    made["$defs"]["PlacementEntry"] |= {"oneOf": ways, "dependentRequired": {"avoid": ["near"]}}
    return {"$schema": _DIALECT, "title": "atfnd policy", **made}


def _as_written(value: dict[str, Any], words: tuple[str, ...]) -> None:
    """A value as it stands in a file: no key stands there without one, and instead of a mapping
    one of `words` may; a quantity's default has its unit."""
    value.pop("title", None)
    value.pop("exclusiveMinimum", None)  # of a quantity, which is text
    choices = value.pop("anyOf", None)
    if choices is not None:
        kept = [each for each in choices if each != {"type": "null"}]
        kept = [*({"const": word} for word in words), *kept]
        value.update(kept[0] if len(kept) == 1 else {"anyOf": kept})
    units = QUANTITIES.get(value.get("pattern", ""))
    default = value.pop("default", None)
    if default is not None and "$ref" not in value and default not in ("", []):
        value["default"] = default if units is None else in_words(default, units)
