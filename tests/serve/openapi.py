# SPDX-License-Identifier: GPL-2.0-or-later
"""What the description of the API says an answer must be."""

from __future__ import annotations

import json
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker

from atfnd.serve.api.http import described
from atfnd.serve.api.openapi import document
from tests.serve.published import Published

__all__ = ["DOCUMENT", "agrees", "operations", "schema_of"]

DOCUMENT = document(described(Published()))


def operations() -> list[tuple[str, str]]:
    """Every (method, path) it describes."""
    return [(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item]


def schema_of(method: str, path: str, status: int, content_type: str) -> dict[str, Any]:
    """Of the body of an answer. KeyError: nothing says that it may be so."""
    responses = DOCUMENT["paths"][path][method.lower()]["responses"]
    response = responses.get(str(status), responses["default"])
    if "$ref" in response:
        response = DOCUMENT["components"]["responses"][response["$ref"].rpartition("/")[2]]
    schema: dict[str, Any] = response["content"][content_type.partition(";")[0]]["schema"]
    return schema


def agrees(method: str, path: str, status: int, content_type: str, body: str) -> None:
    """AssertionError: the answer is none that was described."""
    schema = {**schema_of(method, path, status, content_type), "components": DOCUMENT["components"]}
    validator = Draft202012Validator(schema, format_checker=FormatChecker())
    kind = content_type.partition(";")[0]
    if kind == "application/json":
        answers = [json.loads(body)]
    elif kind == "application/x-ndjson":
        answers = [json.loads(line) for line in body.splitlines()]
    else:
        answers = [body]
    for answer in answers:
        faults = [f"{each.json_path}: {each.message}" for each in validator.iter_errors(answer)]
        assert faults == [], f"{method} {path} {status}: {faults}"
