# SPDX-License-Identifier: GPL-2.0-or-later
"""`POST /v1/nics/{nic}/measure`: does it pay to steer this interface?

The answer is a stream of lines. It ends when its reader goes, and so does the measurement.
"""

from __future__ import annotations

import json
from contextlib import aclosing

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Measurement, MeasuringStep
from atfnd.serve import Source
from atfnd.serve.api.answers import LINES, error, number, query_of, streaming, write
from atfnd.serve.api.interfaces import known
from atfnd.serve.api.views import View

__all__ = ["MeasuringRoutes", "measurement_view"]

MOST_S = 7 * 24 * 3600
REFUSED = 1  # the exit code of what the state of the interface forbids


class MeasuringRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/nics/{nic}/measure", self.measure)]

    async def measure(self, request: web.Request) -> web.StreamResponse:
        """`seconds=&slot=&settle=`, all in seconds, and `against=`, the file of another policy.
        What is wrong before it begins is an answer of its own; what ends it early is the last
        line."""
        query = query_of(request, "seconds", "slot", "settle", "against")
        nic = known(self._source, request.match_info["nic"])
        total_s = number(query, "seconds", 600, 1, MOST_S)
        slot_s, settle_s = number(query, "slot", 10, 1, 3600), number(query, "settle", 3, 0, 3600)
        steps = self._source.measure(nic, total_s, slot_s, settle_s, query.get("against"))
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


def _line(step: MeasuringStep | Measurement) -> View:
    if isinstance(step, Measurement):
        return {"result": measurement_view(step)}
    return {**step._asdict(), "left_s": round(step.left_s, 1)}


def measurement_view(found: Measurement) -> View:
    """As the API shows it."""
    return {
        "nic": found.nic,
        "verdict": found.verdict.value,
        "sentence": found.sentence,
        "pairs": found.pairs,
        "slots_lost": found.lost,
        "confidence": found.confidence,
        "against": found.against,
        "figures": [
            {
                **each._asdict(),
                "figure": each.figure.value,
                "verdict": None if each.verdict is None else each.verdict.value,
            }
            for each in found.figures
        ],
    }
