# SPDX-License-Identifier: GPL-2.0-or-later
"""Observing executes as much as is kept in bench/observed.json, counted again in the
guest. After a change that is wanted, `python -m bench observed` keeps the new figures."""

from __future__ import annotations

import json

import pytest

from bench.counted.kept import OBSERVED, count
from bench.counted.observed import differing
from tests.guest.boot import ROOT

GUEST_S = 3600.0


@pytest.mark.timeout(GUEST_S)
def test_observing_executes_what_it_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    kept = json.loads(OBSERVED.read_text())["figures"]
    assert differing(kept, count(1).samples["figures"]) == []  # two windows of 670 requests
