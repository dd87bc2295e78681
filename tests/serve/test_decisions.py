# SPDX-License-Identifier: GPL-2.0-or-later
"""The policy, the plan, a reload, the kill switch and a restore: by the API and by atfnctl."""

from __future__ import annotations

import json
from pathlib import Path

from tests.serve.asking import atfnctl, get, lines, refusal
from tests.serve.published import Serving

MISTAKE = "1 error in the policy\na.yaml:7:3: unknown key `oder`\n    hint: did you mean order?"


def test_what_each_rule_is_doing(daemon: Serving) -> None:
    answer = get(daemon, "/v1/policy")
    assert answer["files"] == ["a.yaml"]
    control, bulk = answer["flows"]
    assert (control["rule"], control["source"], control["flows"]) == (
        "control", "built-in:12", None,
    )  # fmt: skip
    assert answer["interfaces"][0]["source"] == "built-in:8"
    assert json.loads(atfnctl(daemon, "policy", "--json").stdout) == answer
    assert json.loads(atfnctl(daemon, "policy", "bulk", "--json").stdout) == bulk
    header, first, second = lines(daemon, "policy")
    assert header.split()[:3] == ["RULE", "PLACEMENT", "ORDER"]
    assert first.split() == ["control", "leave", "-", "-", "-", "0", "-", "built-in:12"]
    words = ["bulk", "near", "core", "immediate", "3", "3", "3", "353.2M", "a.yaml:7"]
    assert second.split() == words


def test_which_rule_each_flow_matched(daemon: Serving) -> None:
    rows = json.loads(atfnctl(daemon, "policy", "--flows", "--json").stdout)
    assert [(row["rule"], row["source"]) for row in rows] == [("bulk", "a.yaml:7")] * 3
    done = atfnctl(daemon, "policy", "bulky")
    assert (done.returncode, done.stderr) == (
        2, "atfnd: no flow rule is named bulky\nhint: there are: control, bulk\n",
    )  # fmt: skip


def test_what_would_be_done(daemon: Serving) -> None:
    (action,) = get(daemon, "/v1/plan")["actions"]
    assert (action["nic"], action["kind"], action["new"]) == ("eth1", "insert", 3)
    assert (action["rule"], action["source"], action["due_s"]) == ("bulk", "a.yaml:7", None)
    assert action["commands"] == ["ethtool -N eth1 flow-type tcp4 action 3"]
    assert get(daemon, "/v1/plan?nic=lab:lab")["actions"] == []
    assert lines(daemon, "plan") == [
        "# insert eth1 tcp 10.0.0.2:5201 <- 10.9.0.1:40002 queue 0 -> 3"
        " (its thread runs on CPU 3) [bulk, a.yaml:7]",
        "ethtool -N eth1 flow-type tcp4 action 3",
    ]
    assert lines(daemon, "plan", "--nic", "lab:lab") == ["nothing is to be done"]
    status, answer = refusal(daemon, "/v1/plan?nic=eth7")
    assert (status, answer["hint"]) == (404, "interfaces atfnd watches: lab:lab, eth1")
    assert atfnctl(daemon, "plan", "--nic", "eth7").returncode == 2


def test_a_recording(daemon: Serving, tmp_path: Path) -> None:
    file = tmp_path / "seen.jsonl"
    words = "record", str(file), "--seconds", "9", "--max", "3"
    assert lines(daemon, *words) == [f"{file}: 3 lines"]
    assert [json.loads(line)["line"] for line in file.read_text().splitlines()] == [0, 1, 2]
    assert refusal(daemon, "/v1/record?seconds=0")[0] == 400
    assert atfnctl(daemon, "record", str(tmp_path / "no/such")).returncode == 2


def test_a_reload(daemon: Serving) -> None:
    assert lines(daemon, "reload") == ["2 flow rules in force: a.yaml"]
    daemon.do(lambda: setattr(daemon.source, "mistake", MISTAKE))
    done = atfnctl(daemon, "reload")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"atfnd: {MISTAKE}\n")
    assert refusal(daemon, "/v1/reload", "-X", "POST") == (400, {"error": MISTAKE, "hint": None})
    assert refusal(daemon, "/v1/reload")[0] == 405


def test_one_request_disarms_all(daemon: Serving) -> None:
    assert get(daemon, "/v1/disarm", "-XPOST") == {"armed": []}
    assert not any(nic["armed"] for nic in get(daemon, "/v1/nics")["nics"])
    assert refusal(daemon, "/v1/disarm")[0] == 405
    done = atfnctl(daemon, "disarm")
    assert (done.returncode, done.stdout) == (0, "every interface is disarmed\n")


def test_restore_says_what_became_of_each(daemon: Serving) -> None:
    done = atfnctl(daemon, "restore", "lab:lab")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        "lab:lab: rss left at 0-3: another program set it",
        "lab:lab is disarmed: nothing of ours is in it",
    ]
    done = atfnctl(daemon, "restore")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "eth1: xps is left",
        "eth1 is disarmed: something of ours is left",
    ]
    (mine, theirs) = json.loads(atfnctl(daemon, "restore", "--json").stdout)
    assert (mine["clear"], theirs["clear"]) == (True, False)
    assert [row["errno"] for row in theirs["restored"]] == [None, "EPERM"]
