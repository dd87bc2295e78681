# SPDX-License-Identifier: GPL-2.0-or-later
"""docs/policies.md: its example is a policy, and its reference is that of the schema."""

from __future__ import annotations

import re
from pathlib import Path

from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from docs.reference import with_reference

PAGE = Path(__file__).parents[2] / "docs" / "policies.md"


def test_the_reference_is_that_of_the_schema() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == with_reference(text), "`make docs` writes it"


def test_its_example_is_read() -> None:
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    here = example.replace("user: globus", "user: root")  # a user of this machine
    assert decode(Document("f", here.encode()))[1] == []
