# SPDX-License-Identifier: GPL-2.0-or-later
"""What `atfnd check` says of a policy that is no mistake and probably not meant, and where."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from atfnd.policy.file.host import HostInterface
from atfnd.policy.file.load import check

ROOT = Path(__file__).parents[2]
SHIPPED = [*sorted(ROOT.glob("policies/*.yaml")), ROOT / "packaging" / "atfnd.yaml"]
HERE = ("eno1", "lo")
UNITS = ("nginx.service", "postgresql@15-main.service", "ssh.service", "system.slice")


def warned(
    capsys: pytest.CaptureFixture[str],
    *files: Path,
    there: Collection[str] = HERE,
    units: Sequence[str] = (),
) -> list[str]:
    """Each warning as `FILE:LINE:COLUMN: message [hint]`, without the folder. An interface that
    stands on others is `bond0=eth0,eth1`."""
    cut = [name.partition("=") for name in there]
    interfaces = [
        HostInterface(name=name, lower=tuple(filter(None, lower.split(","))))
        for name, _, lower in cut
    ]
    check(files=files, interfaces=interfaces, units=units)
    said = capsys.readouterr()
    assert said.out.startswith("policy OK: ")
    lines = [line for line in said.err.splitlines() if not line.startswith("     ")]
    places = [line for line in lines if not line.startswith("    ")]
    hints = [line.removeprefix("    hint: ") for line in lines if line.startswith("    hint: ")]
    folder = f"{files[0].parent}/"
    both = zip(places, hints, strict=True)
    return [f"{place} [{hint}]".replace(folder, "") for place, hint in both]


def written(folder: Path, *rules: str, head: str = "flows", name: str = "a.yaml") -> Path:
    """A policy whose rules begin on line 3."""
    file = folder / name
    lines = [f"- {{ {rule} }}" for rule in rules]
    file.write_text("\n".join(["version: 1", f"{head}:", *lines]) + "\n")
    return file


def flow(name: str, match: str, placement: str = "{near: core}", more: str = "") -> str:
    return f"name: {name}, match: {{ {match} }}, placement: {placement}{more}"


COMES = "comes first and matches all that it matches"
DECIDES = "this rule decides on no interface:"


@pytest.mark.parametrize(
    ("head", "rules", "said"),
    [
        ("flows",
         [flow("web", "ports: [80, 443]"), flow("small", "ports: 80, min_bytes: 1B"),
          flow("other", "ports: 81"), flow("all", "protocol: [tcp, udp, sctp]", "leave"),
          flow("late", "process: nginx")],
         [f"4:11: no flow falls under `small`: `web` {COMES}"
          " [put it before `web` (a.yaml:3), or remove it]",
          f"7:11: no flow falls under `late`: `all` {COMES}"
          " [put it before `all` (a.yaml:6), or remove it]"]),
        ("flows",
         [flow("ssh", "ports: 22, user: root"), flow("half", "ports: [22, 23]")],
         [f"3:11: no flow falls under `ssh`: `control` {COMES} [`control` (built-in:12) always "
          "stands first: remove this rule, or write a `control` that asks for less]"]),
        ("flows",
         [flow("ldp", "ports: 646"), flow("control", "ports: 1-1023", "leave")],
         [f"3:11: no flow falls under `ldp`: `control` {COMES} [`control` (a.yaml:4) always "
          "stands first: remove this rule, or write a `control` that asks for less]"]),
        ("flows",
         [flow("dns", "direction: accepted, protocol: udp")],
         ["3:36: no flow falls under `dns`: UDP has no direction"
          " [leave `direction` out, or add tcp to `protocol`]"]),
        ("flows",
         [flow("all", "protocol: udp", "leave"),
          flow("dns", "direction: accepted, protocol: [udp, tcp]")], []),
        ("interfaces",
         ['match: { name: "en*|eth*" }', 'match: { name: "eno1 | eth1*" }, armed: true',
          'match: { name: "eno1|wlan0" }, armed: true', 'match: { name: "*" }',
          'match: { name: "*" }'],
         [f"4:20: {DECIDES} `en*|eth*` comes first and matches all that `eno1|eth1*` "
          "matches [put it before the rule at a.yaml:3, or remove it]",
          f"7:20: {DECIDES} `*` comes first and matches all that `*` matches [put it before "
          "the rule at a.yaml:6, or remove it]"]),
        ("interfaces",
         ['match: { name: "en*", driver: "i*" }, armed: true',
          'match: { name: "en*" }, armed: true', "match: { name: eno1, driver: igb }, armed: true"],
         [f"5:20: {DECIDES} `en* (driver i*)` comes first and matches all that "
          "`eno1 (driver igb)` matches [put it before the rule at a.yaml:3, or remove it]"]),
    ],
    ids=range(7),
)  # fmt: skip
def test_a_rule_that_never_decides(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    head: str,
    rules: Sequence[str],
    said: Sequence[str],
) -> None:
    file = written(tmp_path, *rules, head=head)
    assert warned(capsys, file) == [f"a.yaml:{each}" for each in said]


def test_what_is_armed_leaves_out_a_rule_that_never_decides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rule = 'match: { name: "en*" }, armed: true'
    check(files=[written(tmp_path, rule, rule, head="interfaces")])
    assert "armed: en*" in capsys.readouterr().out.splitlines()


@pytest.mark.parametrize(
    ("rule", "absent"),
    [
        ('match: { name: "eth0|ens?" }, armed: true', "eth0|ens?"),
        ('match: { name: "eth*" }', None),
        ('match: { name: "lab:*" }, armed: true', None),  # no interface has such a name
        ('match: { name: "eno*|!eno1" }, armed: true', "eno*|!eno1"),
        ("match: { name: eno1, driver: igb }, armed: true", None),  # drivers are not read
    ],
)
def test_an_armed_name_that_no_interface_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], rule: str, absent: str | None
) -> None:
    """A hint names a few of those that there are."""
    file = written(tmp_path, rule, head="interfaces")
    said = f"a.yaml:3:20: no interface of this machine matches `{absent}` now [there are: "
    for there, named in (
        (HERE, "eno1, lo]"),
        ([*HERE, *(f"v{i}" for i in range(9))], "eno1, lo, v0, v1, v2, v3, v4, v5 and 3 more]"),
    ):
        expected = [] if absent is None else [said + named]
        assert warned(capsys, file, there=there) == expected
    assert warned(capsys, file, there=()) == []  # they are not known


BELOW_BOND = "bond0 stands on eth0, eth1: no NIC has this name [name those below: eth0|eth1]"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bond0", BELOW_BOND),
        ("bond*", BELOW_BOND),
        ("eth0|eth0.7", "eth0.7 stands on eth0: no NIC has this name [name those below: eth0]"),
        ("eth*", None),
        ("*", None),
    ],
)
@pytest.mark.parametrize("head", ["interfaces", "flows"])
def test_a_name_of_what_stands_on_a_nic(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], head: str, name: str, said: str | None
) -> None:
    rule = f'match: {{ name: "{name}" }}, armed: true'
    if head == "flows":
        rule = flow("a", f'interface: "{name}"')
    file = written(tmp_path, rule, head=head)
    there = ("bond0=eth0,eth1", "eth0", "eth1", "eth0.7=eth0")
    expected = [] if said is None else [said]
    assert [each.partition(": ")[2] for each in warned(capsys, file, there=there)] == expected


@pytest.mark.parametrize(
    ("unit", "there"),
    [
        ("postgresql.service", "postgresql@15-main.service"),
        ("gateway.service", "nginx.service, postgresql@15-main.service, ssh.service, system.slice"),
        ("gateway.service|nginx.service", None),
        ("postgresql@*", None),
        ("!ssh.service", None),
    ],
)
def test_a_unit_without_a_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], unit: str, there: str | None
) -> None:
    file = written(tmp_path, flow("a", f'unit: "{unit}"'))
    none = f"no process of this machine is in a unit that matches `{unit}`"
    hint = f"there are: {there}; `systemctl status PID` names it"
    expected = [] if there is None else [f"{none} [{hint}]"]
    said = warned(capsys, file, units=UNITS)
    assert [each.partition(": ")[2] for each in said] == expected
    assert warned(capsys, file) == []  # where there is no systemd


LEAVE_ALL = flow("rest", "protocol: [tcp, udp, sctp]", "leave")


@pytest.mark.parametrize(
    ("match", "others", "lost"),
    [
        ("ports: 22", (), "port 179"),
        ("ports: [22, 179], protocol: [tcp, udp]", (), "port 22 (sctp), port 179 (sctp)"),
        ("ports: [22, 179], remote: 10.0.0.0/8", (), "port 22, port 179"),
        ("ports: [20-30, 100-200], protocol: [sctp, udp, tcp]", (), None),
        ("ports: 22", (LEAVE_ALL,), None),
        ("ports: 22", (flow("one", "protocol: udp"), LEAVE_ALL), "port 179 (udp)"),
        ("ports: 22", (flow("one", "direction: accepted"), LEAVE_ALL), "port 179 (tcp, sctp)"),
        ("ports: 22", (flow("bgp", "ports: 179", "leave"),), None),
    ],
)
def test_a_rule_in_place_of_control_that_leaves_less_alone(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    match: str,
    others: tuple[str, ...],
    lost: str | None,
) -> None:
    control = flow("control", match, "leave", ", replaces_built_in: true")
    file = written(tmp_path, control, *others)
    column = file.read_text().splitlines()[2].index("true") + 1
    less = f"a.yaml:3:{column}: `control` leaves less alone than the built-in rule: rules may now"
    hint = "add to the `match` of `control` what is not to be steered"
    said = [each for each in warned(capsys, file) if "falls under" not in each]
    assert said == ([] if lost is None else [f"{less} steer {lost} [{hint}]"])


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.name)
def test_what_is_shipped_is_meant(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert warned(capsys, file, there=["eth0"]) == []


def test_warnings_stand_in_the_order_of_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rest = flow("rest", "protocol: tcp", "leave")
    first = written(tmp_path, flow("one", "ports: 22"), rest, name="b.yaml")
    second = written(tmp_path, flow("x", "ports: 179"), flow("all", "protocol: tcp", "leave"))
    interfaces = "interfaces:\n- { match: { name: eth0 }, armed: true }\n"
    second.write_text(second.read_text() + interfaces)
    warnings = [warning.partition(": ") for warning in warned(capsys, first, second)]
    places = [place for place, _, _ in warnings]
    assert places == ["b.yaml:3:11", "b.yaml:4:11", "a.yaml:3:11", "a.yaml:6:20"]
    assert warnings[1][2] == (
        f"no flow falls under `rest`: `all` {COMES}"
        " [`rest` always stands last: remove it, or let others match less]"
    )
