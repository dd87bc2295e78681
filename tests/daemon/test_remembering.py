# SPDX-License-Identifier: GPL-2.0-or-later
"""What the daemon remembers for the page: an hour at most."""

from __future__ import annotations

from dataclasses import replace

from atfnd.daemon.remembering import Remembering
from tests.serve.published import Published


def test_a_sample_has_what_ended_since_the_one_before_and_an_hour_is_kept() -> None:
    status = Published().status()
    counts = (("gap", "done", 2),), (("gap", "done", 2), ("hold", "proven", 3)), ()
    said = iter(replace(status, moves=moves) for moves in (*counts, *[()] * 400))
    remembering = Remembering(lambda: next(said))
    for n in range(3):
        remembering.take(n)
    samples = remembering.history().samples
    assert [each.moves for each in samples] == [
        (("gap", "done", 2),), (("hold", "proven", 3),), ()
    ]  # fmt: skip
    assert {each.locality for each in samples} == {0.995}
    for n in range(3, 400):
        remembering.take(n)
    found = remembering.history()
    assert [each.at_ns for each in found.samples] == [*range(40, 400)]
    assert found.every_s * len(found.samples) == 3600
