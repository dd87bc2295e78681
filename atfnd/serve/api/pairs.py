# SPDX-License-Identifier: GPL-2.0-or-later
"""`GET /v1/pairs`, `/v1/pairs/latest`, `/v1/pairs/explain`: what is forwarded, from which interface
to which TX queue, and on which CPUs."""

from __future__ import annotations

from aiohttp import web

from atfnd.errors import OperatorError
from atfnd.model import Pair, Pairs
from atfnd.serve import Source
from atfnd.serve.api.answers import (
    JSON,
    number,
    one_object,
    query_of,
    row_list,
    row_list_in,
    streaming,
)
from atfnd.serve.api.empty import no_pairs
from atfnd.serve.api.interfaces import known
from atfnd.serve.api.views import View
from atfnd.serve.explain.explain import explanation_view
from atfnd.serve.explain.pair import Ends, explain_pair

__all__ = ["PairRoutes"]

SECONDS = 2
KEPT_S = 10.0  # the count, after a question for the latest pairs


class PairRoutes:
    """Handler over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/pairs", self.pairs, allow_head=False),
            web.get("/v1/pairs/latest", self.latest, allow_head=False),
            web.get("/v1/pairs/explain", self.explain, allow_head=False),
        ]

    async def pairs(self, request: web.Request) -> web.StreamResponse:
        """The answer begins at once, and goes on when the time is over."""
        query = query_of(request, "nic", "seconds")
        seconds = number(query, "seconds", SECONDS, 1, 60)
        nic = known(self._source, query["nic"]) if "nic" in query else None
        response = await streaming(request, JSON)
        found = await self._source.pairs(nic, seconds)
        rows = map(_pair_view, found.pairs)
        return await row_list_in(request, response, "pairs", rows, lambda: _view(found))

    async def latest(self, request: web.Request) -> web.StreamResponse:
        """Answers at once. Who asks again and again keeps the count alive."""
        query = query_of(request, "nic")
        nic = known(self._source, query["nic"]) if "nic" in query else None
        self._source.want_pairs(KEPT_S)
        found = self._source.latest_pairs(nic)
        rows = map(_pair_view, found.pairs)
        return await row_list(request, "pairs", rows, lambda: _view(found))

    async def explain(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/pairs/explain?ingress=&rx_queue=&egress=&tx_queue=: counts for SECONDS first."""
        query = query_of(request, *Ends._fields)
        for name in ("ingress", "egress"):
            if name not in query:
                raise OperatorError(f"parameter {name} is missing", "name the interfaces of a pair")
        rx_queue, tx_queue = (
            number(query, name, 0, 0) if name in query else None
            for name in ("rx_queue", "tx_queue")
        )
        ends = Ends(query["ingress"], rx_queue, query["egress"], tx_queue)
        found = await self._source.pairs(None, SECONDS)
        nics = {nic.name: nic for nic in self._source.nics()}
        pair, explanation = explain_pair(ends, found, nics)
        view = None if pair is None else _pair_view(pair)
        return one_object({"pair": view} | explanation_view(explanation))


def _view(found: Pairs) -> View:
    """All but the pairs."""
    return {
        "seconds": round(found.seconds, 3),
        "why_not": found.why_not,
        "missed_packets": found.missed,
        "elsewhere": [
            {
                "netns": each.netns,
                "packets_pps": round(each.packets_pps, 1),
                "bytes_per_s": round(each.bytes_per_s),
            }
            for each in found.elsewhere
        ],
        "why_empty": no_pairs(found),
    }


def _pair_view(each: Pair) -> View:
    return {
        "ingress": each.ingress,
        "among": list(each.among),
        "rx_queue": each.rx_queue,
        "egress": each.egress,
        "tx_queue": each.tx_queue,
        "cpu": each.cpu,
        "tx_cpu": each.tx_cpu,
        "distance": None if each.distance is None else each.distance.value,
        "packets_pps": round(each.packets_pps, 1),
        "bytes_per_s": round(each.bytes_per_s),
        "rule": each.rule,
        "why": each.why,
    }
