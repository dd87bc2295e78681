# SPDX-License-Identifier: GPL-2.0-or-later
"""The resources about decisions: the policy in force, what it would do, and another policy.

`GET /v1/policy`, `/v1/plan`, `/v1/record`, `POST /v1/reload`: docs/api.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing

from aiohttp import web

from atfnd.model import FlowRule, InterfaceRule, Placement, Planned, Policy, Protocol
from atfnd.serve import Source
from atfnd.serve.api.answers import (
    LINES,
    error,
    number,
    one_object,
    query_of,
    row_list,
    slices,
    streaming,
    write,
)
from atfnd.serve.api.flows import Walk
from atfnd.serve.api.interfaces import known
from atfnd.serve.api.views import View, placed

__all__ = ["Decisions", "planned_view"]


class Decisions:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._one_plan = asyncio.Lock()  # each takes all decisions anew

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/policy", self.policy, allow_head=False),
            web.get("/v1/plan", self.plan, allow_head=False),
            web.get("/v1/record", self.record, allow_head=False),
            web.post("/v1/reload", self.reload),
        ]

    async def policy(self, request: web.Request) -> web.StreamResponse:
        """Every rule of the policy in force, and what it is doing now."""
        query_of(request)
        policy = self._source.policy
        counts: dict[str, Counter[str]] = {rule.name: Counter() for rule in policy.flows}
        async for some in slices(request, Walk(self._source.flows())):
            for flow in some:
                if flow.rule_name in counts:
                    count = counts[flow.rule_name]
                    count["flows"] += 1
                    count["placed"] += placed(flow) is True
                    count["bytes"] += flow.bytes
                    count["filters"] += flow.location is not None
        flows = [_rule_view(rule, counts[rule.name]) for rule in policy.flows]
        interfaces = [_interface_view(rule) for rule in policy.interfaces]
        return one_object({"files": list(policy.files), "interfaces": interfaces, "flows": flows})

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/plan?nic=: for this interface, or for all."""
        query, source = query_of(request, "nic"), self._source
        planned: list[Planned] = []
        for name in [known(source, query["nic"])] if "nic" in query else source.names():
            try:
                async with self._one_plan:
                    planned += await source.plan(name)
            except (KeyError, OSError):
                return error(409, f"{name} has just gone", "see `atfnctl events`")
        sources = _sources(source.policy)
        now_ns = time.monotonic_ns()
        rows = (planned_view(each, sources, now_ns) for each in planned)
        return await row_list(request, "actions", rows)

    async def record(self, request: web.Request) -> web.StreamResponse:
        """GET /v1/record?seconds=&max=: JSON lines as things are seen, until the time is over."""
        query = query_of(request, "seconds", "max")
        seconds = number(query, "seconds", 60, 1, 3600)
        lines = self._source.recording(seconds, number(query, "max", 100_000, 1, 10_000_000))
        response = await streaming(request, LINES)
        async with aclosing(lines):
            async for line in lines:
                if request.transport is None:
                    return response  # the client is gone
                if line:
                    await write(request, response, line)
        await response.write_eof()
        return response

    async def reload(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/reload. A wrong policy is answered as a bad parameter is."""
        query_of(request)
        policy = await self._source.reload()
        disarmed = list(self._source.status().disarmed)
        return one_object(
            {"files": list(policy.files), "flow_rules": len(policy.flows), "disarmed": disarmed}
        )


def _rule_view(rule: FlowRule, count: Counter[str]) -> View:
    """Flows that are left alone are not followed: their number is not known."""
    left = rule.placement is Placement.LEAVE
    doing = {name: None if left else count[name] for name in ("flows", "placed", "bytes")}
    return {
        "rule": rule.name,
        "source": rule.source,
        "placement": str(rule.placement),
        "order": None if left else rule.order.value,
        **doing,
        "filters": count["filters"],
        "filters_max": rule.filters_max,
    }


def _interface_view(rule: InterfaceRule) -> View:
    return {
        "match": rule.name,
        "driver": rule.driver,
        "source": rule.source,
        "armed": rule.armed,
        "filters_max": rule.filters_max,
        "filters_reserve": rule.filters_reserve,
        "unowned": rule.unowned,
        "rss_hash": rule.rss_hash,
        "serve_on": str(rule.serve_on) if rule.serve_on.cpus else None,
    }


def _sources(policy: Policy) -> dict[str, str]:
    return {rule.name: rule.source for rule in policy.flows}


def planned_view(planned: Planned, sources: dict[str, str], now_ns: int) -> View:
    """`sources` are the places of the rules, by name; `now_ns` is CLOCK_MONOTONIC."""
    action = planned.action
    due_ns = planned.due_ns
    return action.shown() | {
        "proto": None if action.key is None else Protocol(action.key.protocol).name.lower(),
        "filter": action.location,
        "source": sources.get(action.rule_name),
        "due_s": None if due_ns is None else round(max(due_ns - now_ns, 0) / 1e9, 3),
        "commands": list(planned.commands),
        "cannot": planned.cannot,
    }
