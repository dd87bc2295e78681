# SPDX-License-Identifier: GPL-2.0-or-later
"""The description of the API: every answer is one that it describes."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from jsonschema import Draft202012Validator

from atfnd.model import Device, Move, SteeringMethod
from atfnd.model.reason import Code
from tests.bed import a_bed
from tests.labs import Lab
from tests.serve.asking import Served, curl
from tests.serve.openapi import DOCUMENT, agrees, operations
from tests.serve.published import Serving, flow
from tests.serve.shown import found

PAGE = Path(__file__).parents[2] / "docs/api.md"
ABSENT = quote("tcp 10.0.0.2:1 10.9.0.1:2")


def ask(daemon: Served, method: str, path: str, query: str = "", nic: str = "lab:lab") -> int:
    """Ask, and hold the answer against its description."""
    url = path.replace("{nic}", quote(nic, safe="")) + (f"?{query}" if query else "")
    status, content_type, body = curl(daemon, url, "-X", method)
    agrees(method, path, status, content_type, body)
    return status


def test_it_is_a_description() -> None:
    assert DOCUMENT["openapi"] == "3.1.0"
    for name, schema in DOCUMENT["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        if schema.get("type") == "object":
            assert sorted(schema["required"]) == sorted(schema["properties"]), name
        assert schema["description"], name
    identities = [item[m]["operationId"] for item in DOCUMENT["paths"].values() for m in item]
    assert len(identities) == len(set(identities))


def test_the_page_for_readers_names_each_operation_and_its_parameters() -> None:
    said = re.findall(r"`(GET|POST) (/[^`?]+)\??([^`]*)`", PAGE.read_text())
    made = {(method, path): set(re.findall(r"(\w+)=", query)) for method, path, query in said}
    for method, path in operations():
        listed = DOCUMENT["paths"][path][method.lower()]["parameters"]
        assert made.pop((method, path)) == {p["name"] for p in listed if p["in"] == "query"}, path
    assert not made


def test_it_is_served(daemon: Serving) -> None:
    status, content_type, body = curl(daemon, "/v1/openapi.yaml")
    assert (status, content_type) == (200, "application/yaml; charset=utf-8")
    assert yaml.safe_load(body) == DOCUMENT


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/v1/history", ""),
        ("/v1/flows", "limit=2"),
        ("/v1/flows/stream", "all=1"),
        ("/v1/explain", "flow=cookie:3000007"),
        ("/v1/explain", f"flow={ABSENT}"),
        ("/v1/explain", "flow=5201"),
        ("/v1/queues", ""),
        ("/v1/nics", ""),
        ("/v1/filters", "nic=lab:lab&limit=2"),
        ("/v1/doctor", ""),
        ("/v1/gain", "seconds=1"),
        ("/v1/pairs/latest", ""),
        ("/v1/pairs/explain", "ingress=lab:lab&egress=eth1&tx_queue=1"),
        ("/v1/pairs/explain", "ingress=nope&egress=eth1"),
        ("/v1/policy", ""),
        ("/v1/plan", ""),
    ],
)
def test_what_is_read(daemon: Serving, path: str, query: str) -> None:
    def vary() -> None:
        moved = flow(40_000)._replace(move=Move("hold", "proven", Code.DRAINS(), 0, 5_000_000))
        daemon.source.table.put(moved)
        bare = flow(40_001)._replace(
            thread=None, rx_cpu=None, rx_queue=None, fell_back=Code.KERNEL("full")
        )
        daemon.source.table.put(bare)
        there = found(7)
        daemon.source.found = [there, there._replace(cookie=2, thread=None, app_cpu=None)]
        eth1 = daemon.source.views[1]
        device = Device("igb", "0000:01:00.0", 1, 4, 8, 256, 4096, 3, True, False, 0)
        daemon.source.views[1] = replace(eth1, method=SteeringMethod.RSS, rss=None, device=device)

    daemon.do(vary)
    assert ask(daemon, "GET", path, query) == 200


def test_the_running_daemon(shared_lab: Lab, tmp_path: Path) -> None:
    """Every operation, with a real flow in a real table."""
    name = shared_lab.nic.name
    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        row = bed.steered(bed.apps.tcp())
        query = {
            "/v1/explain": f"flow=cookie:{row['cookie']}",
            "/v1/filters": f"nic={quote(name)}",
            "/v1/record": "seconds=1&max=3",
            "/v1/gain": "seconds=1",
            "/v1/pairs": "seconds=1",
            "/v1/pairs/explain": "ingress=eth0&egress=eth1",
            "/v1/nics/{nic}/measure": "seconds=8&slot=1&settle=0",
        }
        asked = set()
        for method, path in operations():
            if path == "/v1/events/stream":
                continue  # without end: tests/serve/test_api_events.py
            assert ask(bed.daemon, method, path, query.get(path, ""), name) == 200
            asked.add(path)
        assert len(asked) == len(DOCUMENT["paths"]) - 1
