# SPDX-License-Identifier: GPL-2.0-or-later
"""/metrics, and the rules and the dashboard that are written in its names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from atfnd.model import Distance, ForwardedTotals, Pair
from tests.serve.asking import Served, curl, refusal
from tests.serve.published import Serving
from tests.tree.documented import inline, parsed

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "monitoring/atfnd.rules.yaml").read_text())
DASHBOARD = json.loads((ROOT / "monitoring/atfnd-dashboard.json").read_text())
OF_PROMETHEUS = {"instance", "job"}  # labels it adds to whatever it scrapes

PAIR = Pair("eth0", 2, "eth1", 1, 3, 4, Distance.LLC, 1_000, 500.0, 64_000.0)

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
Labels = dict[str, set[str]]  # by name of a series


def scraped(daemon: Served) -> Samples:
    status, content_type, body = curl(daemon, "/metrics")
    assert (status, content_type.split(";")[0]) == (200, "text/plain")
    families = text_string_to_metric_families(body)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[name, tuple(sorted(labels.items()))]


def test_what_is_counted(daemon: Serving) -> None:
    found = scraped(daemon)
    of = {"interface": "lab:lab"}
    assert value(found, "atfnd_flows", **of, state="steered", rule="bulk") == 2
    assert value(found, "atfnd_flows", **of, state="observed", rule="bulk") == 1
    assert value(found, "atfnd_changes_total", **of, kind="insert") == 16
    assert value(found, "atfnd_refusals_total", **of, kind="insert", errno="ENOSPC") == 1
    read = {(w, a): value(found, "atfnd_read_bytes_total", **of, local=w, armed=a)
            for w in ("true", "false", "unseen") for a in ("true", "false")}  # fmt: skip
    assert list(read.values()) == [850, 50, 50, 50, 7, 0]
    assert value(found, "atfnd_interface_armed", interface="eth1") == 0
    assert value(found, "atfnd_filters", **of, owner="atfnd") == 1
    assert value(found, "atfnd_filter_slots", **of) == 4096
    assert value(found, "atfnd_loop_lateness_seconds_bucket", le="0.01") == 99
    assert value(found, "atfnd_loop_lateness_seconds_bucket", le="+Inf") == 100
    assert value(found, "atfnd_loop_lateness_seconds_count") == 100
    assert value(found, "atfnd_loop_lateness_seconds_sum") == 0.25
    assert value(found, "atfnd_build_info", version="0.1.0", observer="bpf") == 1
    assert value(found, "process_resident_memory_bytes") > 0
    # What is not known has no series.
    assert "atfnd_filters_max" not in {name for name, _ in found}
    assert ("atfnd_filters", (("interface", "eth1"), ("owner", "others"))) not in found


def test_openmetrics_where_it_is_asked_for(daemon: Serving) -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    _, content_type, body = curl(daemon, "/metrics", "-H", f"Accept: {accept}")
    assert content_type.startswith("application/openmetrics-text")
    assert body.endswith("# EOF\n")
    assert refusal(daemon, "/metrics?name=x")[0] == 400


def test_what_is_forwarded_is_counted_only_where_that_is_asked_for(daemon: Serving) -> None:
    assert not {name for name, _ in scraped(daemon) if "forwarded" in name}
    assert daemon.source.pairs_wanted == []
    curl(daemon, "/metrics?pairs=1")
    assert daemon.source.pairs_wanted == [150]
    assert refusal(daemon, "/metrics?pairs=yes")[0] == 400


def test_the_biggest_pairs_and_how_many_are_left_out(daemon: Serving) -> None:
    pairs = tuple(replace(PAIR, tx_queue=n, packets=1_000 - n) for n in range(70))
    distances = {Distance.LLC: 300, None: 7}
    daemon.source.forwarded_totals = ForwardedTotals(pairs, distances, 9)
    found = scraped(daemon)
    of = {"ingress": "eth0", "egress": "eth1", "cpu": "3"}
    assert value(found, "atfnd_forwarded_packets_total", **of, tx_queue="0") == 1_000
    assert value(found, "atfnd_forwarded_packets_total", **of, tx_queue="63") == 937
    assert len([name for name, _ in found if name == "atfnd_forwarded_packets_total"]) == 64
    assert value(found, "atfnd_forwarded_pairs_left_out") == 6
    assert value(found, "atfnd_forwarded_distance_packets_total", distance="llc") == 300
    assert value(found, "atfnd_forwarded_distance_packets_total", distance="unknown") == 7
    assert value(found, "atfnd_forwarded_missed_packets_total") == 9


def expressions() -> Iterator[tuple[str, str]]:
    """Of the rules and the dashboard: where, and what."""
    for group in RULES["groups"]:
        for rule in group["rules"]:
            yield rule.get("alert") or rule["record"], rule["expr"]
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m")


def parts(node: Any) -> Iterator[Any]:
    """A parsed expression and everything in it."""
    yield node
    for name in ("lhs", "rhs", "expr", "param", "args", "vector_selector"):
        below = getattr(node, name, None)
        for each in below if isinstance(below, list | tuple) else [below]:
            if each is not None:
                yield from parts(each)


def asked_for(expression: str) -> tuple[Labels, set[str]]:
    """Series by name, with the labels they are selected by; and those that they are grouped by."""
    series: Labels = {}
    grouped: set[str] = set()
    for part in parts(promql_parser.parse(expression)):
        if isinstance(part, promql_parser.VectorSelector):
            matchers = [each.name for each in part.matchers.matchers]
            series.setdefault(str(part.name), set()).update(matchers)
        for modifier in (getattr(part, "modifier", None),):
            grouped |= set(getattr(modifier, "labels", None) or [])
            grouped |= set(getattr(getattr(modifier, "matching", None), "labels", None) or [])
    return series, grouped


def there(daemon: Serving) -> Labels:
    """Every series and its labels; those that are seldom there are made to be."""
    found: Labels = {"up": set()}
    for name, labels in scraped(daemon):
        found.setdefault(name, set()).update(label for label, _ in labels)
    for group in RULES["groups"]:
        for rule in group["rules"]:
            if "record" in rule:
                found[rule["record"]] = asked_for(rule["expr"])[1] - OF_PROMETHEUS
    return found


def wrong(expression: str, found: Labels) -> list[str]:
    """What an expression asks for that is not there."""
    series, grouped = asked_for(expression)
    faults = [f"no metric {name}" for name in series if name not in found]
    for name, labels in series.items():
        extra = labels - found.get(name, set()) - OF_PROMETHEUS
        faults += [f"{name} has no {label}" for label in sorted(extra)]
    known = set[str]().union(*(found.get(name, set()) for name in series), OF_PROMETHEUS)
    return faults + [f"nothing has {label}" for label in sorted(grouped - known)]


@pytest.fixture
def everything(daemon: Serving) -> Labels:
    def limit() -> None:
        source = daemon.source
        source.views[0] = replace(source.views[0], budget=100, foreign=3)
        source.forwarded_totals = ForwardedTotals((PAIR,), {Distance.LLC: 7}, 0)

    daemon.do(limit)
    return there(daemon)


def test_every_metric_is_in_the_docs(everything: Labels) -> None:
    """And every one in the docs is there, but for what none of these daemons has."""
    documented = set(re.findall(r"`(atfnd_\w+)`", (ROOT / "docs/monitoring.md").read_text()))
    bases = {re.sub("(_bucket|_count|_sum|_created)$", "", name) for name in everything}
    assert documented == {name for name in bases if name.startswith("atfnd_")}


def test_rules_and_dashboard_ask_for_what_is_there(everything: Labels) -> None:
    faults = {where: wrong(what, everything) for where, what in expressions()}
    assert {where: each for where, each in faults.items() if each} == {}


def test_each_alert_is_in_the_docs() -> None:
    alerts = [r["alert"] for g in RULES["groups"] for r in g["rules"] if "alert" in r]
    text = (ROOT / "docs/monitoring.md").read_text()
    assert re.findall(r"^\| `(Atfnd\w+)` \| [^|]+ \| [^|]+ \|$", text, re.MULTILINE) == alerts


def test_commands_in_alerts_are_taken() -> None:
    """By the parser of `atfnctl`, once Prometheus has put the interface in."""
    text = (ROOT / "monitoring/atfnd.rules.yaml").read_text()
    said = inline(text.replace("{{ $labels.interface }}", "eth2"))
    assert len(said) >= 5
    for command in said:
        program, *words = command.split()
        parsed(program, words)


SELECTED = {"instance": "$instance", "interface": "$interface"}  # what is chosen at the top


def test_panels_show_what_is_chosen_at_the_top(everything: Labels) -> None:
    """Each series by the instance and, if it has one, by the interface."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            expression = target["expr"].replace("$__rate_interval", "5m")
            for part in parts(promql_parser.parse(expression)):
                if not isinstance(part, promql_parser.VectorSelector):
                    continue
                chosen = {each.name: each.value for each in part.matchers.matchers}
                has = (everything[str(part.name)] | OF_PROMETHEUS) & SELECTED.keys()
                wanted = {label: SELECTED[label] for label in has}
                assert {k: v for k, v in chosen.items() if k in SELECTED} == wanted, expression


def test_what_prometheus_is_to_ask_is_what_the_rest_asks_for() -> None:
    asked = yaml.safe_load((ROOT / "monitoring/prometheus.yaml").read_text())
    [job] = asked["scrape_configs"]
    written = (ROOT / "monitoring/atfnd.rules.yaml").read_text() + json.dumps(DASHBOARD)
    assert set(re.findall(r'job=\\*"(\w+)', written)) == {job["job_name"]}
    [target] = job["static_configs"][0]["targets"]
    assert f"ListenStream={target}\n" in (ROOT / "docs/monitoring.md").read_text()
    assert [Path(each).name for each in asked["rule_files"]] == ["atfnd.rules.yaml"]
