# SPDX-License-Identifier: GPL-2.0-or-later
"""`POST /v1/nics/{nic}/measure`: does it pay to steer this interface?

The answer is a stream of lines. It ends when its reader goes, and so does the measurement.
"""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Annotated

from aiohttp import web
from pydantic import Field
from typing_extensions import TypedDict

from atfnd.errors import OperatorError
from atfnd.model import Effect, Figure, Measurement, MeasuringStep
from atfnd.serve import Source
from atfnd.serve.api.answers import RefusalShown, error, streaming, write
from atfnd.serve.api.interfaces import known
from atfnd.serve.api.route import LINES, Route, Text, Whole
from atfnd.serve.api.values import Amount, Count, Positive, shown, words

__all__ = ["MeasuringRoutes", "measurement_view"]

REFUSED = 1  # the exit code of what the state of the interface forbids
SECONDS = Whole(
    "seconds", 1, 7 * 24 * 3600, 600,
    "How long; at least 4 pairs of slots and at most 1,000, else 400.",
)  # fmt: skip
SLOT = Whole("slot", 1, 3600, 10, "How long a slot is, in seconds.")
SETTLE = Whole(
    "settle", 0, 3600, 3,
    "The seconds at the beginning of each slot that are left out; fewer than a slot has.",
)  # fmt: skip
AGAINST = Text(
    "against", "The file of another policy, which steers in the slots that are paused else."
)
ON_ONE = [each for each in Effect if each is not Effect.MIXED]


class MeasureStep(TypedDict):
    """How far a measurement is."""

    slot: Positive
    slots: Annotated[int, Field(ge=2)]
    armed: bool
    """In this slot; else it is paused."""
    left_s: Amount
    """Of the whole measurement."""


class ComparedShown(TypedDict):
    """One figure, armed and paused."""

    figure: Annotated[str, words(Figure)]
    unit: str
    pairs: Count
    """In which it is known."""
    paused: float | None
    """The mean."""
    armed: float | None
    difference: float | None
    """Armed less paused."""
    low: float | None
    """The least that the difference may be."""
    high: float | None
    verdict: Annotated[str, words(ON_ONE)] | None
    """null if the verdict on the whole does not rest on this figure."""


class MeasurementShown(TypedDict):
    """What a measurement found."""

    nic: str
    verdict: Annotated[str, words(Effect)]
    sentence: str
    pairs: Positive
    slots_lost: Count
    """Link down, or the NIC was reset."""
    confidence: float
    """Of the interval of each figure."""
    against: str | None
    """The policy of the slots called paused."""
    figures: list[ComparedShown]


class MeasureResult(TypedDict):
    """What is known after a pair of slots; the last one is the result."""

    result: MeasurementShown


class MeasuringRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        return [
            Route(
                "POST", "/v1/nics/{nic}/measure", "measure", self.measure,
                MeasureStep | MeasureResult | RefusalShown,
                (SECONDS, SLOT, SETTLE, AGAINST), (LINES,),
            ),
        ]  # fmt: skip

    async def measure(self, request: web.Request) -> web.StreamResponse:
        """Compare it armed with itself paused, in turns; ends when its reader goes.

        A step each second, what is known after each pair, and last the result. What is wrong before
        it begins is an answer of its own; what ends it early is the last line."""
        nic = known(self._source, request.match_info["nic"])
        total_s, slot_s, settle_s = (each.of(request) for each in (SECONDS, SLOT, SETTLE))
        steps = self._source.measure(nic, total_s, slot_s, settle_s, AGAINST.of(request))
        async with aclosing(steps):
            try:
                step = await anext(steps)
            except KeyError:
                known(self._source, nic)  # it may just have gone
                raise
            except OperatorError as refusal:
                if refusal.exit_code != REFUSED:
                    raise  # the query is wrong
                return error(409, refusal.message, refusal.hint)
            response = await streaming(request, LINES)
            try:
                while True:
                    await write(request, response, json.dumps(_line(step)) + "\n")
                    step = await anext(steps)
            except OperatorError as refusal:
                said = {"error": refusal.message, "hint": refusal.hint}
                await write(request, response, json.dumps(said) + "\n")
            except StopAsyncIteration:
                pass
            except ConnectionResetError:
                return response  # the reader has gone
        await response.write_eof()
        return response


def _line(step: MeasuringStep | Measurement) -> MeasureStep | MeasureResult:
    if isinstance(step, Measurement):
        return {"result": measurement_view(step)}
    return shown(MeasureStep, step, left_s=round(step.left_s, 1))


def measurement_view(found: Measurement) -> MeasurementShown:
    """As the API shows it."""
    return shown(MeasurementShown, found, slots_lost=found.lost)
