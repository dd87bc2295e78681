# SPDX-License-Identifier: GPL-2.0-or-later
"""What atfnd/serve/api/openapi.yaml says an answer must be."""

from __future__ import annotations

import json
from typing import Any

import yaml
from jsonschema import Draft202012Validator, FormatChecker

from atfnd.serve.api.routes import FILE

__all__ = ["DOCUMENT", "agrees", "operations", "schema_of"]

DOCUMENT: dict[str, Any] = yaml.safe_load(FILE.read_text(encoding="utf-8"))


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
        documents = [json.loads(body)]
    elif kind == "application/x-ndjson":
        documents = [json.loads(line) for line in body.splitlines()]
    else:
        documents = [body]
    for document in documents:
        faults = [f"{each.json_path}: {each.message}" for each in validator.iter_errors(document)]
        assert faults == [], f"{method} {path} {status}: {faults}"
