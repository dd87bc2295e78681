# SPDX-License-Identifier: GPL-2.0-or-later
"""The JSON Schema (2020-12) of a policy file, made from the classes that read it.

What it refuses, `atfnd check` refuses too, but not the other way round: no schema can find an empty
range, or a name given twice.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from atfnd.policy.file.schema import PolicyFile

__all__ = ["json_schema"]


def json_schema() -> dict[str, Any]:
    """As `json.dumps` takes it."""
    made = PolicyFile.model_json_schema(schema_generator=_AsWritten)
    for mapping in (made, *made["$defs"].values()):
        mapping.pop("title")
        for each in (mapping, *mapping["properties"].values()):
            each["description"] = " ".join(each["description"].split())
    return {"$schema": _AsWritten.schema_dialect, "title": "atfnd policy", **made}


class _AsWritten(GenerateJsonSchema):
    """For values as they stand in a file, where no key stands without one."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        said = isinstance(schema.get("default"), int | str) and schema["default"] != ""
        return super().default_schema(schema) if said else self.generate_inner(schema["schema"])
