# SPDX-License-Identifier: GPL-2.0-or-later
"""A reload of the policy under traffic: wholly in force, or not at all."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import Application, delivered
from tests.bed import Bed, a_bed
from tests.daemons import EVERYTHING, OBSERVERS, Row, policy, standing
from tests.labs import Lab
from tests.wait import until

BAD = "version: 1\nflows:\n  - name: everything\n    placement: leave\n    oder: strict\n"


def left(*apps: Application, order: str = "immediate") -> str:
    """These are left alone, the others steered."""
    ports = ", ".join(str(app.key.local_port) for app in apps)
    quiet = f"  - {{ name: quiet, match: {{ ports: [{ports}] }}, placement: leave }}"
    return policy(quiet, order=order)


def reload(bed: Bed, config: str) -> None:
    bed.daemon.config.write_text(config)
    done = bed.daemon.ctl("reload")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture(scope="module", params=OBSERVERS)
def bed(
    request: pytest.FixtureRequest, shared_lab: Lab, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bed]:
    with a_bed(shared_lab, tmp_path_factory.mktemp("daemon"), request.param) as made:
        made.start()
        yield made


def rules_shown(bed: Bed) -> list[str]:
    return [row["source"] for row in bed.daemon.get("/v1/policy")["flows"]]


def counts(status: Row) -> Row:
    names = "table_capacity", "policy_files", "flows_by_state", "armed", "actions_applied"
    return {name: status[name] for name in names}


def test_ports_are_given_up_with_their_last_connection(shared_lab: Lab, tmp_path: Path) -> None:
    """Births are seen from the reload on that asks for them, and no longer than they are needed."""

    def of_port(app: Application) -> list[int]:
        matches = [(rule.match, rule.location) for rule in shared_lab.nic.filters()]
        port = app.key.local_port
        return [at for m, at in matches if m and m.dst_port == port and m.src_port is None]

    with a_bed(shared_lab, tmp_path, "bpf") as bed:
        bed.start()
        reload(bed, policy(order="strict"))
        app = bed.apps.tcp()
        delivered(bed.meter, app)
        until(lambda: of_port(app), "its port has a rule", 30)
        reload(bed, left(app))
        app.end()
        until(lambda: not of_port(app), "its port's rule is gone", 60)
        until(lambda: not bed.daemon.flows(), "nothing is left in the table")
        again = bed.apps.tcp()
        bed.steered(again)
        assert of_port(again) == []

        apps = [again, bed.apps.tcp()]  # a smaller table evicts nobody
        bed.steered(apps[1])
        reload(bed, policy(table=2))
        late = bed.apps.tcp()
        bed.row(late, lambda row: row["state"] == "overflow", "finds the table full")
        for app in apps:
            bed.steered(app)
        assert bed.daemon.status()["table_capacity"] == 2
        reload(bed, policy(table=4))
        bed.steered(late)


# From here on one daemon of each observer serves all.


def test_a_bad_file_changes_nothing_and_says_where(bed: Bed, shared_lab: Lab) -> None:
    app = bed.apps.tcp()
    bed.steered(app)
    before = standing(shared_lab), counts(bed.daemon.status()), rules_shown(bed)
    bed.daemon.config.write_text(BAD)
    done = bed.daemon.ctl("reload")
    assert done.returncode == 2
    assert f"{bed.daemon.config}:5:5: unknown key `oder`" in done.stderr
    assert "did you mean order?" in done.stderr
    assert bed.daemon.process is not None
    bed.daemon.process.send_signal(signal.SIGHUP)
    until(lambda: len(bed.daemon.events("reload-failed")) == 2, "it has said so")
    assert len(re.findall(r"^reload-failed: ", bed.daemon.said(), re.MULTILINE)) == 2
    assert bed.daemon.said().count(":5:5: unknown key `oder`") == 2
    assert (standing(shared_lab), counts(bed.daemon.status()), rules_shown(bed)) == before
    app.migrate()  # and it goes on as before
    bed.steered(app)
    delivered(bed.meter, app)
    bed.daemon.config.write_text(EVERYTHING)
    bed.daemon.process.send_signal(signal.SIGHUP)
    until(lambda: bed.daemon.events("reloaded"), "it is in force")
    app.end()


@pytest.mark.parametrize("order", ["immediate", "strict"])
def test_a_flow_is_left_alone_and_steered_again(bed: Bed, order: str) -> None:
    """The neighbour's rule stays where it is, untouched."""
    steers = policy(order=order)
    reload(bed, steers)
    app, neighbour = bed.apps.udp_connected(), bed.apps.udp_connected()
    for each in (app, neighbour):
        bed.steered(each)
    there = bed.rule(neighbour)
    for _ in range(2):
        reload(bed, left(app, order=order))
        bed.unknown(app)
        app.migrate()
        app.migrate()
        assert bed.rule(app) is None
        reload(bed, steers)
        bed.steered(app)
        delivered(bed.meter, app)
    now = bed.rule(neighbour)
    assert there is not None
    assert now is not None
    assert (now.location, now.queue) == (there.location, there.queue)
    delivered(bed.meter, neighbour)
    for each in (app, neighbour):
        each.end()


def test_thresholds_reach_the_observer(bed: Bed) -> None:
    # in place of the built-in one
    none_else = "  - { name: rest, match: { protocol: tcp }, placement: leave }\n"
    high = EVERYTHING.replace("[tcp, udp]", "[tcp, udp], min_bytes: 1TiB") + none_else
    reload(bed, high)
    app = bed.apps.tcp()
    delivered_before = bed.meter.read()
    until(lambda: bed.meter.read().since(delivered_before).flows.get(app.key), "it talks")
    assert bed.daemon.flow(app.key) is None
    reload(bed, EVERYTHING)
    bed.steered(app)
    reload(bed, high)
    bed.unknown(app)
    reload(bed, EVERYTHING)
    bed.steered(app)
    app.end()


def test_an_order_that_keeps_a_policy_from_arming_is_said(bed: Bed) -> None:
    name = bed.lab.nic.name
    arms = f"{EVERYTHING}interfaces: [{{ match: {{ name: 'lab:*' }}, armed: true }}]\n"
    bed.daemon.order("disarm", name)
    bed.daemon.config.write_text(arms)
    said = bed.daemon.ctl("reload").stdout.replace("\n", " ")
    assert f"{name} disarmed by an order, although the policy arms: atfnctl arm {name}" in said
    assert bed.daemon.status()["disarmed"] == [name]
    assert "an order, although" in bed.daemon.ctl("status").stdout
    bed.daemon.order("arm", name)
    assert bed.daemon.status()["disarmed"] == []
    reload(bed, EVERYTHING)
