# SPDX-License-Identifier: GPL-2.0-or-later
"""Sizes, times and rates are what is written, to the last bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.policy.file.problem import Mistake
from atfnd.policy.file.units import MAX, RATES, SIZES, TIMES, rate_bit_s, size_bytes, time_ns

Kind = tuple[Callable[[object], int], Mapping[str, int]]
KINDS: list[Kind] = [(size_bytes, SIZES), (time_ns, TIMES), (rate_bit_s, RATES)]


@given(st.sampled_from(KINDS), st.data())
def test_units_multiply_exactly(kind: Kind, data: st.DataObject) -> None:
    parse, units = kind
    unit = data.draw(st.sampled_from(list(units)))
    number = data.draw(st.from_regex(r"[0-9]{1,20}(\.[0-9]{1,4})?", fullmatch=True))
    amount = Fraction(number) * units[unit]
    if amount.denominator == 1 and amount <= MAX:
        assert parse(number + unit) == amount
        assert parse(f"{number} {unit}") == amount
    else:
        with pytest.raises(Mistake):
            parse(number + unit)


def test_a_rate_may_say_that_it_is_one() -> None:
    assert rate_bit_s("500Mbit") == rate_bit_s("500 Mbit/s") == 500_000_000
    assert rate_bit_s("10MiB/s") == 10 * 2**20 * 8


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        (500, "`500` has no unit, expected a rate such as 500Mbit", "units: bit, kbit"),
        ("500", "`500` has no unit, expected a rate", "units: bit, kbit"),
        ("500Mb", "unknown unit `Mb`", "did you mean 500Mbit?"),
        ("1.5G", "unknown unit `G`", "did you mean 1.5Gbit?"),
        ("500mbit", "unknown unit `mbit`", "did you mean 500Mbit?"),
        ("500Mbps", "unknown unit `Mbps`", "did you mean 500Mbit?"),
        ("10MiB", "unknown unit `MiB`", "did you mean 10MiB/s?"),
        ("10MB/s", "unknown unit `MB/s`", "did you mean 10MiB/s?"),
        ("0.5bit", "`0.5bit` is not a whole number of bit", None),
        ("500Mbit/h", "unknown unit `Mbit/h`", "units: bit"),
        (None, "expected a rate such as 500Mbit, got nothing", "units: bit"),
    ],
)
def test_no_rate(written: object, message: str, hint: str | None) -> None:
    with pytest.raises(Mistake) as caught:
        rate_bit_s(written)
    assert caught.value.message.startswith(message)
    assert (caught.value.hint or "").startswith(hint or "")
    assert (caught.value.hint is None) == (hint is None)
