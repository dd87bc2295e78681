# SPDX-License-Identifier: GPL-2.0-or-later
"""Each fault that is put back into the product is found: by the seed that is known for it, or by
another, for a change of the product or of the simulation may change what a seed does.
`python -m tests.simulation.planted WORDS` says which seed finds a fault now.
"""

from __future__ import annotations

import pytest

from tests.simulation.planted import FOUND_BY, NOT_FOUND, PLANTED, WHOLE, found_by, seeds_of
from tests.simulation.schedule import plan, whole
from tests.tiers import file_of

__all__: list[str] = []


def test_of_every_fault_it_is_known_what_finds_it() -> None:
    assert {*FOUND_BY, *NOT_FOUND} == {*PLANTED, *WHOLE}
    assert not {*FOUND_BY} & {*NOT_FOUND}
    assert all(file_of(test).exists() for test in NOT_FOUND.values())


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_fault_is_found(name: str) -> None:
    fault, drawn = (PLANTED | WHOLE)[name], whole if name in WHOLE else plan
    assert found_by(fault, [FOUND_BY[name], *seeds_of(name)], drawn) is not None
