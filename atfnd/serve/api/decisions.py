# SPDX-License-Identifier: GPL-2.0-or-later
"""The resources about decisions: the policy in force, what it would do, and another policy.

`GET /v1/policy`, `/v1/plan`, `/v1/record`, `POST /v1/reload`: docs/api.md.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import aclosing
from typing import Annotated, Literal, cast

from aiohttp import web
from typing_extensions import TypedDict

from atfnd.model import (
    ActionKind,
    FlowRule,
    InterfaceRule,
    Mode,
    Placement,
    Planned,
    Policy,
    Protocol,
)
from atfnd.serve import Source
from atfnd.serve.api.answers import error, one_object, row_list, slices, streaming, write
from atfnd.serve.api.flows import Walk
from atfnd.serve.api.interfaces import NIC, named
from atfnd.serve.api.route import LINES, Route, Whole
from atfnd.serve.api.values import Amount, shown, words
from atfnd.serve.api.views import placed

__all__ = ["Decisions", "planned_view"]

RECORD_S = Whole("seconds", 1, 3600, 60)
RECORDED = Whole("max", 1, 10_000_000, 100_000, "The most lines.")


class InterfaceRuleShown(TypedDict):
    """A rule for interfaces."""

    match: str
    """Globs on its name."""
    driver: str | None
    """Globs on its driver's name."""
    source: str
    """file:line"""
    armed: bool
    filters_max: int | None
    filters_reserve: int
    unowned: Literal["keep", "rss", "rfs"]
    """What delivers the flows of threads that wander, on queues nobody owns."""
    rss_hash: Literal["keep", "symmetric"]
    """Whether both directions of a flow are to come to queues of one number."""
    serve_on: str | None
    """CPUs to which its queues may be delivered; `!`, all but these; null, all."""


class FlowRuleShown(TypedDict):
    """A rule for flows, and what it is doing now."""

    rule: str
    source: str
    """file:line"""
    placement: str
    order: Annotated[str, words(Mode)] | None
    flows: int | None
    placed: int | None
    bytes: int | None
    filters: int
    filters_max: int | None
    """On one interface."""


class PolicyShown(TypedDict):
    """The policy in force."""

    files: list[str]
    interfaces: list[InterfaceRuleShown]
    flows: list[FlowRuleShown]


class ActionShown(TypedDict):
    """What would be done, and the shell commands that do the same."""

    nic: str
    kind: Annotated[str, words(ActionKind)]
    flow: str | None
    queue: int | None
    setting: str | None
    value: str | None
    old: int | None
    new: int | None
    why: str
    rule: str | None
    proto: str | None
    filter: int | None
    """Location of the filter."""
    source: str | None
    due_s: Amount | None
    commands: list[str]
    cannot: str | None


class PlanShown(TypedDict):
    """Actions in order."""

    actions: list[ActionShown]


class Reloaded(TypedDict):
    """The policy that is in force now."""

    files: list[str]
    flow_rules: int
    disarmed: list[str]
    """The policy arms these interfaces; an order keeps them disarmed until the next."""


class Decisions:
    """Handlers over one source."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._one_plan = asyncio.Lock()  # each takes all decisions anew

    def routes(self) -> list[Route]:
        recorded = RECORD_S, RECORDED
        return [
            Route("GET", "/v1/policy", "policy", self.policy, PolicyShown),
            Route("GET", "/v1/plan", "plan", self.plan, PlanShown, (NIC,)),
            Route("GET", "/v1/record", "record", self.record, dict, recorded, (LINES,)),
            Route("POST", "/v1/reload", "reload", self.reload, Reloaded),
        ]

    async def policy(self, request: web.Request) -> web.StreamResponse:
        """Every rule in force, its file and line, and what it does now."""
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
        shown: PolicyShown = {
            "files": list(policy.files), "interfaces": interfaces, "flows": flows
        }  # fmt: skip
        return one_object(shown)

    async def plan(self, request: web.Request) -> web.StreamResponse:
        """What would be done now, and the shell commands that do the same."""
        source, only = self._source, named(self._source, request)
        planned: list[Planned] = []
        for name in source.names() if only is None else [only]:
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
        """The observations behind decisions, as they happen, for `atfnd replay`.

        One per line, until the time is over; docs/api.md lists the kinds."""
        lines = self._source.recording(RECORD_S.of(request), RECORDED.of(request))
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
        """Read the policy again. If it is wrong, nothing changes."""
        policy = await self._source.reload()
        reloaded: Reloaded = {
            "files": list(policy.files),
            "flow_rules": len(policy.flows),
            "disarmed": list(self._source.status().disarmed),
        }
        return one_object(reloaded)


def _rule_view(rule: FlowRule, count: Counter[str]) -> FlowRuleShown:
    """Flows that are left alone are not followed: their number is not known."""
    left = rule.placement is Placement.LEAVE
    return {
        "rule": rule.name,
        "source": rule.source,
        "placement": str(rule.placement),
        "order": None if left else rule.order.value,
        "flows": None if left else count["flows"],
        "placed": None if left else count["placed"],
        "bytes": None if left else count["bytes"],
        "filters": count["filters"],
        "filters_max": rule.filters_max,
    }


def _interface_view(rule: InterfaceRule) -> InterfaceRuleShown:
    serve_on = str(rule.serve_on) if rule.serve_on.cpus else None
    return shown(InterfaceRuleShown, rule, match=rule.name, serve_on=serve_on)


def _sources(policy: Policy) -> dict[str, str]:
    return {rule.name: rule.source for rule in policy.flows}


def planned_view(planned: Planned, sources: dict[str, str], now_ns: int) -> ActionShown:
    """`sources` are the places of the rules, by name; `now_ns` is CLOCK_MONOTONIC."""
    action = planned.action
    due_ns = planned.due_ns
    shown = action.shown() | {
        "proto": None if action.key is None else Protocol(action.key.protocol).name.lower(),
        "filter": action.location,
        "source": sources.get(action.rule_name),
        "due_s": None if due_ns is None else round(max(due_ns - now_ns, 0) / 1e9, 3),
        "commands": list(planned.commands),
        "cannot": planned.cannot,
    }
    return cast("ActionShown", shown)
