# SPDX-License-Identifier: GPL-2.0-or-later
"""Policy files become the policy they say, and flows fall under the rule they should."""

from __future__ import annotations

import ipaddress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.cli.commands import check as check_verb
from atfnd.errors import OperatorError
from atfnd.model import (
    ANY_CPU,
    Device,
    Direction,
    Facts,
    FlowKey,
    FlowRule,
    Migrant,
    Mode,
    Network,
    NicView,
    Placement,
    Policy,
    Protocol,
    ServeOn,
)
from atfnd.policy.file import load as load_module
from atfnd.policy.file.load import check, load
from atfnd.policy.file.problem import Mistake, PolicyError
from atfnd.policy.file.schema import network, port_range
from atfnd.policy.file.units import MAX
from atfnd.policy.match.match import (
    Matcher,
    armed,
    filter_budget,
    interface_rule,
    may_borrow,
    qualify,
    under_policy,
)
from tests.values import NIC, RULE

MS = 10**6


def policy_of(tmp_path: Path, text: str) -> Policy:
    file = tmp_path / "atfnd.yaml"
    file.write_text(text)
    return load(file)


def key(
    local: str = "10.0.0.1:443", remote: str = "10.0.0.2:5000", protocol: int = Protocol.TCP
) -> FlowKey:
    (near, near_port), (far, far_port) = local.rsplit(":", 1), remote.rsplit(":", 1)
    return FlowKey(
        protocol,
        ipaddress.ip_address(near).packed,
        int(near_port),
        ipaddress.ip_address(far).packed,
        int(far_port),
    )


def rule_for(policy: Policy, flow: FlowKey, comm: str | None = "x") -> str | None:
    rule = Matcher(policy).first_match(Facts(flow, comm, bytes=MAX, age_ns=MAX))
    return None if rule is None else rule.name


def nic(name: str, driver: str | None = None, **caps: Any) -> NicView:
    device, can = Device(driver=driver), replace(NIC.caps, **caps)
    return replace(NIC, name=name, device=device, caps=can)


def test_reads_every_key(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        """\
version: 1
about: all of it
daemon:
  observer: sock_diag
  table: {max: 7}
  settle: {hold_down: 2m}
  web: {port: 8650}
interfaces:
  - match: {name: "lab:* | sim?"}
    armed: true
    filters: {max: 5, reserve: 2}
    napi_threads: never
flows:
  - name: one
    match:
      protocol: [tcp, sctp]
      ports: [22, 8000-8010]
      local: 10.0.0.0/8
      remote: ["2001:db8::/32", 192.0.2.1]
      process: "iperf3|globus*"
      direction: accepted
      interface: "eth*|lab:*| ! eth0"
      command: "*iperf3 -s*"
      user: [root, 1000]
      cgroup: /system.slice/*
      unit: "nginx.service|user@*"
      min_bytes: 1.5KiB
      min_age: 1.5s
      min_rate: 500Mbit
    placement: {near: core}
    t_delete: 1h
    dwell: 20us
    order: bounded
    owner: process
    filters: {max: 100}
""",
    )
    file = tmp_path / "atfnd.yaml"
    assert policy.flows[1] == FlowRule(
        name="one",
        source=f"{file}:14",
        protocols=frozenset({Protocol.TCP, Protocol.SCTP}),
        ports=((22, 22), (8000, 8010)),
        local=(Network(4, bytes([10, 0, 0, 0]), 8),),
        remote=(
            Network(6, ipaddress.ip_address("2001:db8::").packed, 32),
            Network(4, bytes([192, 0, 2, 1]), 32),
        ),
        processes=("iperf3", "globus*"),
        direction=Direction.ACCEPTED,
        interfaces=("eth*", "lab:*", "!eth0"),
        commands=("*iperf3 -s*",),
        users=frozenset({0, 1000}),
        cgroups=("/system.slice/*",),
        units=("nginx.service", "user@*"),
        min_bytes=1536,
        min_age_ns=1500 * MS,
        min_rate_bit_s=500_000_000,
        placement=Placement.CORE,
        order=Mode.BOUNDED,
        owner=Migrant.PROCESS,
        dwell_ns=20_000,
        t_delete_ns=3600 * 1000 * MS,
        filters_max=100,
    )
    assert [rule.name for rule in policy.flows] == ["control", "one", "rest"]
    assert (policy.observer, policy.table_max) == ("sock_diag", 7)
    assert policy.hold_down_ns == 120_000 * MS
    assert policy.web_port == 8650
    assert policy.files == (str(file),)
    rule = interface_rule(policy.interfaces, nic("lab:a"))
    assert rule is not None
    assert rule.source == f"{file}:9"
    assert armed(policy, nic("lab:a"))
    assert armed(policy, nic("sim0"))
    assert not armed(policy, nic("eth0"))
    slots = [nic("lab:a", filter_slots=n) for n in (None, 100, 6, 1)]
    assert [filter_budget(policy.interfaces, each) for each in slots] == [5, 5, 4, 0]
    assert filter_budget(policy.interfaces, nic("eth0", filter_slots=None)) is None
    assert may_borrow(policy.interfaces, nic("eth0"))
    assert not may_borrow(policy.interfaces, nic("lab:a"))


@pytest.mark.parametrize(
    ("match", "met", "not_met"),
    [
        ('name: [eth0, "ens*|enp*"]', ["eth0", "ens1", "enp1"], ["eth1"]),
        ('name: "eth*|!eth0"', ["eth1"], ["eth0", "ens1"]),
        ('name: ["! eth0", "!ens*"]', ["eth1"], ["eth0", "ens1"]),
        ('driver: "ixgbe|i40*"', ["a i40e", "b ixgbe"], ["a igb", "a"]),
        ('driver: "!igb*"', ["a ixgbe"], ["a igb", "a igbvf", "a"]),
        ('name: "eth*", driver: igb', ["eth0 igb"], ["eth0 ice", "ens1 igb", "eth0"]),
    ],
)
def test_interfaces_by_name_and_by_driver(
    tmp_path: Path, match: str, met: list[str], not_met: list[str]
) -> None:
    """A driver that is not known meets nothing that arms."""
    text = f"version: 1\ninterfaces: [{{ match: {{ {match} }}, armed: true }}]\n"
    policy = policy_of(tmp_path, text)
    assert [armed(policy, nic(*each.split())) for each in met] == [True] * len(met)
    assert [armed(policy, nic(*each.split())) for each in not_met] == [False] * len(not_met)


def test_an_interface_whose_driver_is_not_known_may_be_one_that_is_not_to_be_armed(
    tmp_path: Path,
) -> None:
    policy = policy_of(
        tmp_path,
        "version: 1\ninterfaces:\n"
        "- { match: { driver: ice }, filters: { max: 1 } }\n"
        "- { match: { driver: igb }, armed: true, filters: { max: 2 } }\n"
        '- { match: { name: "*" }, armed: true, filters: { max: 3 } }\n',
    )
    nics = [nic("eth0", driver) for driver in ("ice", "igb", "tg3", None)]
    assert [armed(policy, each) for each in nics] == [False, True, True, False]
    assert [filter_budget(policy.interfaces, each) for each in nics] == [1, 2, 3, 1]
    views = [under_policy(each, policy.interfaces, policy.flows) for each in nics]
    assert [view.budget for view in views] == [1, 2, 3, 1]


def heard(tmp_path: Path, text: str) -> NicView:
    """By a NIC under this policy."""
    policy = policy_of(tmp_path, f"version: 1\n{text}\n")
    return under_policy(NIC, policy.interfaces, policy.flows)


def test_a_nic_hears_what_rules_say_of_its_queues_hash_and_orders(tmp_path: Path) -> None:
    rule = 'interfaces: [{ match: { name: "*" }, serve_on: %s, rss_hash: %s }]\n'
    rule += "flows: [{ name: a, match: { protocol: tcp }, placement: %s, order: bounded }]"
    view = heard(tmp_path, rule % ('"!1"', "symmetric", "{ near: core }"))
    assert (view.serve_on, str(view.serve_on)) == (ServeOn(frozenset({1}), True), "!1")
    assert view.symmetric_hash
    assert view.orders == {Mode.STRICT, Mode.BOUNDED}
    view = heard(tmp_path, rule % ("0-1", "keep", "leave"))
    assert (view.serve_on, view.symmetric_hash) == (ServeOn(frozenset({0, 1}), False), False)
    assert view.orders == {Mode.STRICT}  # that of the built-in rule
    plain = heard(tmp_path, "")
    assert (plain.serve_on, plain.symmetric_hash, plain.borrows) == (ANY_CPU, False, True)
    assert (plain.unowned_rfs, plain.keeps_rfs) == (False, True)


def test_built_in_watches_all_and_leaves_the_ways_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "DEFAULT_CONFIG", tmp_path / "atfnd.yaml")
    policy = load()
    assert policy.files == ()
    assert not armed(policy, nic("eth0"))
    assert rule_for(policy, key(local="10.0.0.1:22")) == "control"
    assert rule_for(policy, key(remote="10.0.0.2:179")) == "control"
    assert rule_for(policy, key("::1:80", "::2:90", Protocol.UDP)) == "rest"
    rest = policy.flows[-1]
    assert (rest.placement, rest.source) == (Placement.CORE, "built-in:15")
    assert qualify(policy) == (rest.dwell_ns, rest.min_bytes, rest.min_age_ns)
    assert qualify(policy) == (10 * MS, 64 * 1024, 200 * MS)
    assert rule_for(policy, key(protocol=1)) is None


def test_parts_alone_are_read_without_a_main_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "DEFAULT_CONFIG", tmp_path / "atfnd.yaml")
    (tmp_path / "policies.d").mkdir()
    part = tmp_path / "policies.d" / "a.yaml"
    part.write_text('version: 1\ninterfaces: [{match: {name: "eth*"}, armed: true}]\n')
    (tmp_path / "policies.d" / ".#a.yaml").symlink_to("nobody@nowhere")  # an editor's lock
    (tmp_path / "policies.d" / "a.yaml~").write_text("old")
    assert load().files == (str(part),)
    assert armed(load(), nic("eth0"))


def test_names_and_daemon_settings_are_given_once(tmp_path: Path) -> None:
    (tmp_path / "policies.d").mkdir()
    text = (
        "version: 1\ndaemon: {}\nflows:\n- {name: a, match: {ports: 1}, placement: leave}\n"
        "host: {softirq_budget: {packets: 2}}\n"
        "forwarding:\n- {name: a, match: {in: x, out: y}, placement: {pair: core}}\n"
    )
    main, part = tmp_path / "m.yaml", tmp_path / "policies.d" / "p.yaml"
    main.write_text(text)
    part.write_text(text)
    for read in (lambda: load(main), lambda: check(files=[main, part])):
        with pytest.raises(PolicyError) as caught:
            read()
        hint = f"    hint: they are in {main}: keep them in one file"
        assert [str(p).splitlines()[0::3] for p in caught.value.problems] == [
            [f"{part}:4:10: a second flow rule named `a`", f"    hint: the first is at {main}:4"],
            [
                f"{part}:7:10: a second forwarding rule named `a`",
                f"    hint: the first is at {main}:7",
            ],
            [f"{part}:2:1: a second `daemon`", hint],
            [f"{part}:5:1: a second `host`", hint],
        ]


def test_check_reads_files_alone_and_in_this_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "version: 1\nflows: [{{name: {}, match: {{ports: 1}}, placement: leave}}]\n"
    files = [tmp_path / "b.yaml", tmp_path / "a.yaml"]
    for file in files:
        file.write_text(text.format(file.stem))
    (tmp_path / "policies.d").mkdir()
    (tmp_path / "policies.d" / "c.yaml").write_text(text.format("c"))
    check_verb(files)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"policy OK: {files[0]}, {files[1]}"
    assert [line.partition(":")[0] for line in lines[2:]] == ["control", "b", "a", "rest"]
    check_verb(config=files[0])
    assert "\nb: leave" in (said := capsys.readouterr().out)
    assert "\nc: leave" in said
    with pytest.raises(OperatorError, match="FILE and --config"):
        check_verb(files, files[0])


@given(st.lists(st.lists(st.integers(0, 99)), max_size=4))
def test_rules_stand_in_the_order_of_the_files(parts: list[list[int]]) -> None:
    with TemporaryDirectory() as folder:
        (Path(folder) / "policies.d").mkdir()
        expected = []
        for i, part in enumerate(parts):
            names = [f"r{i}-{j}-{port}" for j, port in enumerate(part)]
            expected += names
            flows = [f"{{name: {n}, match: {{ports: 1}}, placement: leave}}" for n in names]
            name = "m.yaml" if i == 0 else f"policies.d/{i}.yaml"
            (Path(folder) / name).write_text(f"version: 1\nflows: [{', '.join(flows)}]\n")
        if parts:
            loaded = load(Path(folder) / "m.yaml").flows
            assert [rule.name for rule in loaded] == ["control", *expected, "rest"]


PORTS = st.integers(0, 65536)


@given(PORTS, PORTS)
def test_port_ranges(low: int, high: int) -> None:
    if 1 <= low <= high <= 65535:
        assert port_range(f"{low}-{high}") == (low, high)
    else:
        with pytest.raises(Mistake):
            port_range(f"{low}-{high}")


@given(
    st.lists(st.tuples(PORTS, PORTS), min_size=1, max_size=3),
    st.lists(st.ip_addresses(v=4).map(str), min_size=1, max_size=2),
    st.integers(0, 32),
    st.integers(0, 65535),
    st.integers(0, 65535),
    st.ip_addresses(v=4).map(str),
)
def test_matches_as_the_words_say(
    ranges: list[tuple[int, int]],
    networks: list[str],
    prefix: int,
    local_port: int,
    remote_port: int,
    address: str,
) -> None:
    inside = [ipaddress.ip_network(f"{n}/{prefix}", strict=False) for n in networks]
    rule = replace(
        RULE, ports=tuple(ranges), local=tuple(network(str(n)) for n in inside), min_bytes=1,
        min_age_ns=2, placement=Placement.LEAVE,
    )  # fmt: skip
    matcher = Matcher(Policy((), (rule,), "auto", 1, 0, ()))
    flow = key(f"{address}:{local_port}", f"192.0.2.1:{remote_port}")
    expected = (
        any(port in range(a, b + 1) for a, b in ranges for port in (local_port, remote_port))
        and any(ipaddress.ip_address(address) in n for n in inside)
        and address != "0.0.0.0"
    )
    assert (matcher.first_match(Facts(flow, bytes=1, age_ns=2)) is rule) == expected
    assert matcher.first_match(Facts(flow, bytes=0, age_ns=2)) is None
    assert matcher.first_match(Facts(flow, bytes=1, age_ns=1)) is None


def test_qualify_is_the_loosest_of_the_rules_that_steer(tmp_path: Path) -> None:
    policy = policy_of(
        tmp_path,
        "version: 1\nflows:\n"
        "- {name: a, match: {ports: 1, min_bytes: 1B}, placement: leave, dwell: 1ns}\n"
        "- {name: b, match: {ports: 2, min_bytes: 9B, min_age: 9s}, placement: {near: core}}\n"
        "- {name: c, match: {ports: 3, min_bytes: 8KiB, min_age: 1s}, placement: {near: core}}\n"
        "- {name: rest, match: {protocol: tcp}, placement: leave}\n",
    )
    assert qualify(policy) == (10 * MS, 9, 1000 * MS)
    assert qualify(Policy((), (), "auto", 1, 0, ())) == (MAX, MAX, MAX)  # nothing is let up


# The built-in rules, and what replaces them

ALL = "{name: all, match: {protocol: tcp}, placement: {near: core}}"
IN_PLACE = "placement: leave, replaces_built_in: true"


@pytest.mark.parametrize(
    ("written", "order", "found"),
    [
        # A `rest` replaces the built-in one, and stands after all others.
        (["{name: rest, match: {protocol: udp}, placement: leave}",
          "{name: web, match: {ports: 443}, placement: {near: core}}"],
         "control web rest", {443: "web", 9: None}),
        # What replaces `control` stands before all others,
        ([ALL, f"{{name: control, match: {{ports: 179}}, {IN_PLACE}}}"],
         "control all rest", {179: "control", 22: "all"}),
        # and what leaves the ways in alone may do so without saying it.
        ([ALL, "{name: control, match: {ports: [20-23, 179, 6653]}, placement: leave}"],
         "control all rest", {22: "control", 6653: "control"}),
    ],
    ids=["rest", "replaced", "control"],
)  # fmt: skip
def test_a_rule_in_place_of_a_built_in_one(
    tmp_path: Path, written: list[str], order: str, found: dict[int, str | None]
) -> None:
    rules = "".join(f"- {rule}\n" for rule in written)
    policy = policy_of(tmp_path, f"version: 1\nflows:\n{rules}")
    assert [rule.name for rule in policy.flows] == order.split()
    assert {port: rule_for(policy, key(local=f"10.0.0.1:{port}")) for port in found} == found


REST = "flows:\n- {name: rest, match: {protocol: tcp}, placement: leave}\n"


def test_two_files_may_have_the_same_rest(tmp_path: Path) -> None:
    config, part = tmp_path / "atfnd.yaml", tmp_path / "policies.d" / "a.yaml"
    part.parent.mkdir()
    config.write_text(f"version: 1\n{REST}")
    part.write_text(f"version: 1\nabout: Another file.\n{REST}")
    policy = load(config)
    assert [rule.source for rule in policy.flows[1:]] == [f"{config}:3"]

    part.write_text(f"version: 1\n{REST}".replace("tcp", "udp"))
    with pytest.raises(PolicyError) as caught:
        load(config)
    [problem] = caught.value.problems
    assert (problem.file, problem.line) == (str(part), 3)
    assert problem.message == "a second flow rule named `rest`"
    assert problem.hint == f"the first is at {config}:3 and says something else"


BUILT_IN = "`control` is the built-in rule that leaves ssh and BGP alone"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("name: control, match: {ports: 9000}, placement: {near: core}", BUILT_IN),
        ("name: control, match: {ports: 179}, placement: leave", BUILT_IN),
        ("name: control, match: {ports: [22, 179], remote: 10.0.0.0/8}, placement: leave",
         BUILT_IN),
        ("name: mine, match: {ports: 1}, placement: leave, replaces_built_in: true",
         "there is no built-in rule `mine`"),
    ],
)  # fmt: skip
def test_control_is_not_replaced_by_accident(tmp_path: Path, rule: str, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        policy_of(tmp_path, f"version: 1\nflows:\n- {{{rule}}}\n")
    (problem,) = caught.value.problems
    assert problem.message == said
    assert "replaces_built_in" in str(problem) or "control and rest" in str(problem)
