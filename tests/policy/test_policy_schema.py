# SPDX-License-Identifier: GPL-2.0-or-later
"""The JSON Schema: what it refuses, `atfnd check` refuses; and it refuses what it can tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from atfnd.cli.commands import schema
from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.json_schema import json_schema
from tests.daemons import EVERYTHING
from tests.policy.test_policy_errors import BAD as MISTAKES

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
POLICIES = sorted(Path(__file__).parents[2].glob("policies/*.yaml"))
BAD = [text for text, _, _ in MISTAKES]
# What no schema tells, or an editor not at its place.
NOT_REPORTED = (
    "duplicate key", "a single word", "empty range", "empty name", "no such port", "host bits",
    "prefix length", "can match no", "is not a whole number", "out of range", "there is no user",
    "must be more than 0", "expected a network", "the kernel counts", "must be 1000000000 or less",
    "avoid: smt goes with",
)  # fmt: skip


def instance(text: str) -> tuple[Any, list[str]]:
    """The file as an editor has it, and what we say of it."""
    document = Document("f", text.encode())
    _, problems = decode(document)
    return json.loads(json.dumps(document.tree)), [each.message for each in problems]


def test_it_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    schema()
    assert json.loads(capsys.readouterr().out) == SCHEMA


@pytest.mark.parametrize("text", BAD)
def test_it_refuses_what_we_refuse(text: str) -> None:
    tree, problems = instance(text)
    assert problems
    if not any(words in said for said in problems for words in NOT_REPORTED):
        assert not VALIDATOR.is_valid(tree), problems


def _mappings(schema: dict[str, Any], at: str = "PolicyFile") -> dict[str, dict[str, Any]]:
    """Those of a file."""
    mapping = schema if at == "PolicyFile" else schema["$defs"][at]
    found = {at: mapping}
    for value in mapping["properties"].values():
        choices = (value, value.get("items", {}), *value.get("anyOf", ()))
        if ref := next((each["$ref"] for each in choices if "$ref" in each), None):
            found |= _mappings(schema, ref.rpartition("/")[2])
    return found


def test_every_key_is_explained() -> None:
    for name, mapping in _mappings(SCHEMA).items():
        assert mapping["description"]
        assert mapping["additionalProperties"] is False
        for key, value in mapping["properties"].items():
            assert value.get("description", "").endswith("."), f"{name}.{key}"


# Values that are right or nearly so, of any key.
WORDS = st.sampled_from(
    ["tcp", "22", "22-23", "30-10", "10.0.0.0/8", "10.0.0.1/8", "::1", "a", "a|b*", "|", " ", "",
     "root", "64KiB", "64 KiB", "64kb", "1.5s", "0s", "500Mbit", "500Mbit/s", "1.5GiB/s", "leave",
     "/a.slice", "a.service", "accepted", "connected", "strict", "thread", "bpf", "é", "eth*",
     "!", "!a", "a|! b", "!!"]
)  # fmt: skip
LEAF = st.one_of(st.none(), st.booleans(), st.integers(-1, 70000), WORDS)
VALUE = st.one_of(LEAF, st.lists(LEAF, max_size=2))


def _documents(name: str = "PolicyFile") -> st.SearchStrategy[dict[str, Any]]:
    """Files with a known key in any place, and mostly with what is needed."""
    mapping = _mappings(SCHEMA)[name]
    words = st.sampled_from(["leave", "auto"])
    needed: dict[str, Any] = {"version": st.just(1), "name": WORDS, "placement": words}
    made: dict[str, st.SearchStrategy[Any]] = {}
    for key, value in mapping["properties"].items():
        items = value.get("items", {})
        if "$ref" in value and key != "placement":
            made[key] = _documents(value["$ref"].rpartition("/")[2])
        elif "$ref" in items:
            made[key] = st.lists(_documents(items["$ref"].rpartition("/")[2]), max_size=1)
        else:
            made[key] = needed.get(key, VALUE)
    required = {key: made.pop(key) for key in mapping.get("required", ())}
    return st.fixed_dictionaries(required, optional=made)


@given(_documents())
def test_it_accepts_what_we_accept(tree: dict[str, Any]) -> None:
    content, _ = decode(Document("f", json.dumps(tree, ensure_ascii=False).encode()))
    if content is not None:
        VALIDATOR.validate(tree)


def test_it_accepts_the_examples_and_the_policy_of_the_tests() -> None:
    for text in (EVERYTHING, *(file.read_text() for file in POLICIES)):
        VALIDATOR.validate(instance(text)[0])
