# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/pairs`, `/v1/pairs/latest`, `/v1/pairs/explain`: what is forwarded, from which interface
to which TX queue, and on which CPUs."""

from __future__ import annotations

from aiohttp import web
from typing_extensions import TypedDict

from atfnd.errors import OperatorError
from atfnd.model import ForwardedElsewhere, Pair, Pairs
from atfnd.serve import Source
from atfnd.serve.api.answers import one_object, row_list, row_list_in, streaming
from atfnd.serve.api.empty import no_pairs
from atfnd.serve.api.interfaces import NIC, named
from atfnd.serve.api.route import JSON, Route, Text, Whole
from atfnd.serve.api.values import Amount, Count, Within, shown
from atfnd.serve.explain.explain import ExplanationShown, explanation_view
from atfnd.serve.explain.pair import Ends, explain_pair

__all__ = ["PairRoutes"]

COUNTED_S = 2
SECONDS = Whole("seconds", 1, 60, COUNTED_S, "How long to count.")
INGRESS = Text("ingress", required=True, example="eth0")
EGRESS = Text("egress", required=True, example="eth1")
RX_QUEUE, TX_QUEUE = Whole("rx_queue", 0), Whole("tx_queue", 0)
KEPT_S = 10.0  # the count, after a question for the latest pairs


class PairShown(TypedDict):
    """What one CPU forwards from one interface to one TX queue."""

    ingress: str
    """The interface at the bottom of those that it came in by; or, if several are at the bottom,
    the one that stands upon them."""
    among: list[str]
    """Those at the bottom, by one of which it came in. Empty, the ingress is it."""
    rx_queue: Count | None
    """Queue of the ingress that is served on the CPU. null, the interface is not watched, has
    several such queues or none, or RPS is on."""
    egress: str
    tx_queue: Count
    cpu: Count
    """It receives, routes and sends."""
    tx_cpu: Count | None
    """Serves the channel of the TX queue. null, the interface is not watched, or has no such
    channel, or the channel may be served on several CPUs."""
    distance: Within | None
    """What the two CPUs share."""
    packets_pps: Amount
    """As they leave."""
    bytes_per_s: Count
    rule: str | None
    """The policy's forwarding rule for it."""
    why: str | None
    """Why its channels are where they are, or what they wait for."""


class ElsewhereShown(TypedDict):
    """What a namespace forwards in which no interface is watched."""

    netns: str
    """Its name, or the number that lsns shows."""
    packets_pps: Amount
    bytes_per_s: Count


class PairsRest(TypedDict):
    """All but the pairs."""

    seconds: Amount
    """How long was counted."""
    why_not: str | None
    """Why nothing was counted."""
    missed_packets: Count
    """Found no room."""
    elsewhere: list[ElsewhereShown]
    """Most packets first."""
    why_empty: str | None
    """Why there is no row, in a sentence; null, there are rows."""


class PairsShown(PairsRest):
    """What is forwarded, by ingress, TX queue and CPU."""

    pairs: list[PairShown]
    """Most packets first."""


class PairExplanation(ExplanationShown):
    """The way from receive queue to TX queue, and the verdict."""

    pair: PairShown | None


class PairRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[Route]:
        ends = INGRESS, RX_QUEUE, EGRESS, TX_QUEUE
        return [
            Route("GET", "/v1/pairs", "pairs", self.pairs, PairsShown, (NIC, SECONDS)),
            Route("GET", "/v1/pairs/latest", "latestPairs", self.latest, PairsShown, (NIC,)),
            Route("GET", "/v1/pairs/explain", "explainPair", self.explain, PairExplanation, ends),
        ]

    async def pairs(self, request: web.Request) -> web.StreamResponse:
        """What is forwarded, from which interface to which TX queue, and on which CPUs.

        Nothing is changed. The answer begins at once and ends when the time is over."""
        seconds, nic = SECONDS.of(request), named(self._source, request)
        response = await streaming(request, JSON)
        found = await self._source.pairs(nic, seconds)
        rows = map(_pair_view, found.pairs)
        return await row_list_in(request, response, "pairs", rows, lambda: _view(found))

    async def latest(self, request: web.Request) -> web.StreamResponse:
        """What was forwarded in the last seconds, for a reader that asks again and again.

        Nothing is changed. The answer comes at once. The daemon counts until 10 s after the last
        question; the first answers have a `why_not`: the count has just begun."""
        nic = named(self._source, request)
        self._source.want_pairs(KEPT_S)
        found = self._source.latest_pairs(nic)
        rows = map(_pair_view, found.pairs)
        return await row_list(request, "pairs", rows, lambda: _view(found))

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """Why forwarded packets are handled where they are.

        Of the pairs with these ends the one with most packets, counted for 2 s."""
        ingress, egress = (_end(request, end) for end in (INGRESS, EGRESS))
        ends = Ends(ingress, RX_QUEUE.given(request), egress, TX_QUEUE.given(request))
        found = await self._source.pairs(None, COUNTED_S)
        nics = {nic.name: nic for nic in self._source.nics()}
        pair, explanation = explain_pair(ends, found, nics)
        view = None if pair is None else _pair_view(pair)
        return one_object({"pair": view, **explanation_view(explanation)})


def _end(request: web.Request, end: Text) -> str:
    name = end.of(request)
    if name is None:
        raise OperatorError(f"parameter {end.name} is missing", "name the interfaces of a pair")
    return name


def _view(found: Pairs) -> PairsRest:
    """All but the pairs."""
    return shown(
        PairsRest,
        found,
        seconds=round(found.seconds, 3),
        missed_packets=found.missed,
        elsewhere=[shown(ElsewhereShown, each, **_rates(each)) for each in found.elsewhere],
        why_empty=no_pairs(found),
    )


def _pair_view(each: Pair) -> PairShown:
    return shown(PairShown, each, **_rates(each))


def _rates(each: Pair | ForwardedElsewhere) -> dict[str, float]:
    return {"packets_pps": round(each.packets_pps, 1), "bytes_per_s": round(each.bytes_per_s)}
