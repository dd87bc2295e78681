# SPDX-License-Identifier: GPL-2.0-or-later
"""What a bad policy file is answered with: exact words at the exact place, and nothing is used."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.load import load
from atfnd.policy.file.problem import PolicyError

FLOW = "version: 1\nflows:\n  - name: a\n    placement: leave\n    match: "
DAEMON = "version: 1\ndaemon: "
IFACE = 'version: 1\ninterfaces:\n  - match: {name: "eth*"}\n    '

# what is written, `line:column: message`, hint (None: what the key means, or another one)
BAD: list[tuple[str, str, str | None]] = [
    # the file
    ("", "1:1: the file says nothing", "a policy begins with `version: 1`"),
    ("flows: []\n", "1:1: `version` is missing", "add `version: 1`, the policy format version"),
    ("version: 2\n", "1:10: expected 1, got `2`", None),
    ('version: "1"\n', '1:10: expected 1, got `"1"`', "did you mean 1?"),
    ("version: 1\nabout: 12\n", "2:8: expected text, got `12`", "quote it"),
    ("version: 1\nflow: []\n", "2:1: unknown key `flow`", "did you mean flows?"),
    ("version: 1\nversion: 1\n", "2:1: duplicate key `version`", "first written at line 1, column"),
    ("version: 1\n[a]: 1\n", "2:1: a key is a single word", None),
    # what goes with what
    (IFACE + 'serve_on: "0-"', "4:15: expected CPUs such as 0-7,16-23, or !0, got `0-`", "leave"),
    (IFACE + "serve_on: [0-7, 16]", "4:15: expected CPUs such as", "as one text, such as"),
    (IFACE + 'serve_on: "!0,!2"', "4:15: expected CPUs such as", "did you mean !0,2?"),
    (IFACE + "serve_on: 0xff", "4:15: expected CPUs such as", "CPUs by number, not as a mask"),
    (IFACE + "serve_on: 7-0", "4:15: `7-0` is an empty range", "did you mean 0-7?"),
    # YAML itself
    ("a: b: c\n", "1:5: mapping values are not allowed here", None),
    ("a:\n\tb: 1\n", "2:1: while scanning for the next token, found character", "YAML is ind"),
    ("a: [1,\n  2\nb: 3\n", "3:2: while parsing a flow sequence, expected ',' or", "it begins at"),
    ("version: 1\n---\nversion: 1\n", "2:1: expected a single document in the stream", "it begi"),
    ("version: &v 1\n", "1:10: a YAML anchor is not read here", None),
    ("version: *v\n", "1:10: a YAML alias is not read here", None),
    ("version: 1\nabout: \0\n", "2:8: a control character", None),
    ('version: 1\nabout: "\\uD800"\n', "2:8: half of a surrogate pair is no character", None),
    ('version: 1\nabout: "\\UFFFFFFFF"\n', "2:11: no such character or version", None),
    ("[" * 9000, "1:1: nested too deeply", None),
    (FLOW + "{<<: {ports: 1}}", "5:13: unknown key `<<`", "known here: protocol, ports, local, "),
    # flow rules
    (FLOW + "{}", "5:12: an empty match", "to match every flow: {protocol: [tcp, udp, sctp]}"),
    (FLOW + "{prots: 1}", "5:13: unknown key `prots`", "did you mean ports?"),
    (FLOW + "{protocol: tpc}", "5:23: expected tcp, udp, sctp, got `tpc`", "did you mean tcp?"),
    (FLOW + "{ports: []}", "5:20: `ports` is empty", None),
    (FLOW + "{ports: }", "5:19: expected a port or a range such as 8000-8010, got nothing", None),
    (FLOW + "{ports: 10:30}", "5:20: expected a port or a range such as", "did you mean 10-30?"),
    (FLOW + "{ports: [22, 65536]}", "5:25: no such port: `65536`", "ports are 1 to 65535"),
    (FLOW + "{ports: 30-10}", "5:20: `30-10` is an empty range", "did you mean 10-30?"),
    (FLOW + "{ports: [bgp]}", "5:21: expected a port or a range such as", "did you mean 179?"),
    (FLOW + "{namespace: web}", "5:13: unknown key `namespace`", "a pod is known by its"),
    (FLOW + "{local: 10.0.0.1/8}", "5:20: `10.0.0.1/8` has host bits", "did you mean 10.0.0.0/8?"),
    (FLOW + "{local: 10.0.0.0/33}", "5:20: no such prefix length: `/33`", "/0 to /32"),
    (FLOW + "{local: 10.0.0/8}", "5:20: expected a network such as 10.0.0.0/8, got", None),
    (FLOW + "{process: 7}", "5:22: expected a process name, got `7`", "quote it"),
    (FLOW + '{process: "a||b"}', "5:22: `a||b` has an empty name in it", None),
    (
        FLOW + "{process: systemd-networkd}",
        "5:22: `systemd-networkd` can match no process: the kernel keeps 15 bytes of a name",
        "did you mean systemd-network?",
    ),
    (FLOW + "{min_bytes: 65536}", "5:24: `65536` has no unit, expected a size", "units: B, KiB"),
    (FLOW + "{min_bytes: 64kb}", "5:24: unknown unit `kb`, expected a size", "did you mean 64KiB?"),
    (FLOW + "{min_bytes: 9000000000GiB}", "5:24: `9000000000GiB` is out of range", None),
    (FLOW + "{min_age: 2S}", "5:22: unknown unit `S`, expected a time", "did you mean 2s?"),
    (FLOW + "{ports: 1}\n    t_delete: 0s", "6:15: must be more than 0", None),
    (FLOW.replace(": a", ": 5") + "{ports: 1}", "3:11: expected a name, got `5`", "letters,"),
    # names that nothing can have
    (FLOW + '{command: ""}', "5:22: an empty name", None),
    (FLOW + '{process: "!"}', "5:22: `!` excludes nothing", "write a name after the `!`"),
    (FLOW + '{unit: "a.service|!nginx"}', "5:19: `nginx` can match no unit", "did you mean nginx"),
    (FLOW + "{interfaces: eth0}", "5:13: unknown key `interfaces`", "did you mean interface?"),
    (FLOW + "{interface: [eth0]}", "5:24: expected an interface name, got a list", "quote it"),
    (FLOW + "{user: rooot}", "5:19: there is no user `rooot` here", "did you mean root?"),
    (FLOW + "{user: [0, qqqqqqqq]}", "5:23: there is no user `qqqqqqqq` here", "a uid is taken"),
    (FLOW + "{user: -1}", "5:19: no such uid: `-1`", "uids are 0 to"),
    (
        FLOW + "{cgroup: /sys/fs/cgroup/system.slice}",
        "5:21: `/sys/fs/cgroup/system.slice` can match no cgroup",
        "did you mean /system.slice?",
    ),
    (FLOW + "{cgroup: a.slice}", "5:21: `a.slice` can match no cgroup", "did you mean /a.slice?"),
    (FLOW + "{cgroup: /a/}", "5:21: `/a/` can match no cgroup", "did you mean /a or /a/*?"),
    (
        FLOW + "{unit: system.slice/a.service}",
        "5:19: `system.slice/a.service` can match no unit",
        "did you mean a.service?",
    ),
    (FLOW + "{unit: a.timer}", "5:19: `a.timer` can match no unit", "did you mean a.timer.serv"),
    (FLOW + "{min_rate: 500}", "5:23: `500` has no unit, expected a rate", "units: bit, kbit"),
    # interfaces and daemon
    (IFACE + "armed: yes", "4:12: expected true or false, got `yes`", "did you mean true?"),
    (IFACE + "filters: {max: 010}", "4:20: expected a number, got `010`", "did you mean 10?"),
    (IFACE + 'filters: {max: "10"}', '4:20: expected a number, got `"10"`', "did you mean 10?"),
    (IFACE + "filters: {max: 0x10}", "4:20: expected a number, got `0x10`", "plain decimal digits"),
    (IFACE + "filters: {reserve: -1}", "4:24: must be 0 or more", None),
    (FLOW + "{ports: 1}\n    filters: {max: 0}", "6:20: must be 1 or more", None),
    (FLOW + "{ports: 1}\n    max: 5", "6:5: unknown key `max`", "did you mean filters: {max: 5}?"),
    (IFACE.replace('"eth*"', '""'), "3:19: an empty name", None),
    (IFACE.replace('{name: "eth*"}', "{}"), "3:12: an empty match", "to match every interface: {n"),
    (IFACE.replace('"eth*"', "!eth0"), "3:24: while scanning a tag", "quote a value"),
    (IFACE.replace("name", "drivers"), "3:13: unknown key `drivers`", "did you mean driver?"),
    # one mapping too far out
    (IFACE + "max: 5", "4:5: unknown key `max`", "did you mean filters: {max: 5}?"),
    (FLOW + "{}\n    near: smt", "6:5: unknown key `near`", "did you mean placement: {near: smt}?"),
    (FLOW + "{}\n    ports: [1]", "6:5: unknown key `ports`", "did you mean match: {ports: ...}?"),
    ("version: 1\nobserver: bpf", "2:1: unknown key `observer`", "did you mean daemon: {obser"),
    (DAEMON + "{observer: bpff}", "2:20: expected auto, bpf or sock_diag, got", "did you mean"),
    (DAEMON + "{web: {port: 80}}", "2:22: must be 1024 or more", None),
    (DAEMON + "{table: {max: 99999999}}", "2:23: must be 16777216 or less", None),
]

# The same for what stands in one line, the place being behind the ^.
PLACED = "flows: [{name: a, match: {ports: 1}, placement: "
FORWARDED = "forwarding: [{name: a, "
MATCHED = f"{FORWARDED}match: {{in: x, out: y}}, "
BUDGET = "host: {softirq_budget: "
MARKED: list[tuple[str, str, str | None]] = [
    (PLACED + "^{near: core, cpus: 1}}]", "a placement of near and cpus", "say one of near, cpus"),
    (PLACED + "^{avoid: smt}}]", "a placement of no place", "say one of near, cpus, dedicated"),
    (PLACED + "^{near: smt, avoid: smt}}]", "avoid: smt goes with near: llc or near: node", None),
    (PLACED + "{near: ^lcc}}]", "expected core, smt, llc or node, got `lcc`", "did you mean llc?"),
    (PLACED + "{near: llc, avoid: ^own}}]", "expected smt, got `own`", None),
    (PLACED + "{cpus: ^all}}]", "expected a CPU or a range such as 4-6, got `all`", None),
    (PLACED + "^llc}]", "expected leave, auto or {near: core}", "did you mean {near: llc}?"),
    (PLACED + "{^nearly: core}}]", "unknown key `nearly`", "did you mean near?"),
    (FORWARDED + "match: ^{in: x}, placement: {pair: core}}]", "`out` is missing", None),
    (FORWARDED + "match: {in: ^1, out: y}, placement: {pair: core}}]",
     "expected an interface name", None),
    (MATCHED + "placement: ^{pair: core, mode: I}}]", "a placement of pair and", None),
    (MATCHED + "placement: {pair: core}, order: ^at-once}]", "expected strict or", None),
    (BUDGET + "{packets: ^0}}", "must be 1 or more", None),
    (BUDGET + "{packets: ^2147483648}}", "must be 2147483647 or less", None),
    (BUDGET + "{time: ^2s}}", "must be 1000000000 or less", None),
    (BUDGET + "{time: ^1500ns}}", "the kernel counts whole micro", "did you mean 2us?"),
    (BUDGET + "^{}}", "an empty softirq_budget", "say packets, time or both"),
    (BUDGET + "{^packet: 2}}", "unknown key `packet`", "did you mean packets?"),
]  # fmt: skip
BAD += [
    (f"version: 1\n{text.replace('^', '')}\n", f"2:{text.index('^') + 1}: {said}", hint)
    for text, said, hint in MARKED
]


@pytest.mark.parametrize(("text", "place", "hint"), BAD)
def test_says_what_is_wrong_and_where(
    tmp_path: Path, text: str, place: str, hint: str | None
) -> None:
    file = tmp_path / "atfnd.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PolicyError) as caught:
        load(file)
    at = [p for p in caught.value.problems if f"{p.line}:{p.column}: {p.message}".startswith(place)]
    assert len(at) == 1, str(caught.value)
    assert (at[0].hint or "").startswith(hint or "")
    assert at[0].hint
    assert str(at[0]).startswith(f"{file}:{place}")


def test_prints_the_line_a_caret_and_the_hint(tmp_path: Path) -> None:
    file = tmp_path / "atfnd.yaml"
    file.write_text("version: 1\nflows:\n- name: a\n  match: {prots: [22]}\n  placement: leav\n")
    with pytest.raises(PolicyError) as caught:
        load(file)
    assert str(caught.value) == (
        "2 errors in the policy\n"
        f"{file}:4:11: unknown key `prots`\n"
        "      match: {prots: [22]}\n"
        "              ^^^^^\n"
        "    hint: did you mean ports?\n"
        f"{file}:5:14: expected leave, auto or {{near: core}}, got `leav`\n"
        "      placement: leav\n"
        "                 ^^^^\n"
        "    hint: did you mean leave?"
    )
    assert caught.value.exit_code == 2


def test_a_caret_stays_under_its_place_behind_a_tab() -> None:
    document = Document("f", b'{version: 1, about: "a\tb", abut: 1}')
    _, problems = decode(document)
    assert str(problems[0]).splitlines()[1:3] == [
        '    {version: 1, about: "a\tb", abut: 1}',
        "    " + " " * 22 + "\t" + " " * 4 + "^^^^",
    ]


def test_words_of_a_file_cannot_steer_the_terminal() -> None:
    _, problems = decode(Document("f", b'version: 1\n"\\x1b[2J": 1\n'))
    assert "unknown key `?[2J`" in str(problems[0])
    _, problems = decode(Document("f", b"version: 1\nabout: \x1b[2J\n"))
    assert "\x1b" not in str(problems[0])


def test_not_utf8_is_placed_by_character(tmp_path: Path) -> None:
    _, problems = decode(Document("f", "version: 1\r\nabout: é".encode() + b"\xff\n"))
    assert [(p.line, p.column, p.message) for p in problems] == [(2, 9, "not UTF-8")]


def test_every_file_reports_every_mistake(tmp_path: Path) -> None:
    (tmp_path / "policies.d").mkdir()
    (tmp_path / "atfnd.yaml").write_text("version: 3\nabot: x\n")
    (tmp_path / "policies.d" / "a.yaml").write_text("- 1\n")
    (tmp_path / "policies.d" / "b.yml").write_text("version: 1\n")
    with pytest.raises(PolicyError) as caught:
        load(tmp_path / "atfnd.yaml")
    assert [(Path(p.file).name, p.line, p.message) for p in caught.value.problems] == [
        ("b.yml", None, "only *.yaml is read here"),
        ("atfnd.yaml", 1, "expected 1, got `3`"),
        ("atfnd.yaml", 2, "unknown key `abot`"),
        ("a.yaml", 1, "expected a mapping, got a list"),
    ]


def _unreadable(config: Path) -> str:
    with pytest.raises(PolicyError) as caught:
        load(config)
    return str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    start = "1 error in the policy\n"
    missing = tmp_path / "no.yaml"
    assert _unreadable(missing) == f"{start}{missing}: cannot be read: No such file or directory"
    loop = tmp_path / "loop.yaml"
    loop.symlink_to(loop)
    assert "loop.yaml: cannot be read: Too many levels of symbolic links" in _unreadable(loop)
    (tmp_path / "atfnd.yaml").write_text("version: 1\n")
    (tmp_path / "policies.d").write_text("version: 1\n")
    said = _unreadable(tmp_path / "atfnd.yaml")
    assert said.endswith("policies.d: cannot be read: Not a directory")


KEYS = "version daemon table settle interfaces flows match name placement ports local process"
MORE = (
    "min_age t_delete rules max near cpus leave core 10:30 22 2s 64KiB ::1/128 ~ { } [ ] & * !! ?"
)
MARKS = ["version: 1\n", ": ", ", ", "- ", "\n", "\n  ", "\n    ", " ", '"', "\\U00110000", "yes",
         "#", "é"]  # fmt: skip
WORDS = st.sampled_from([*KEYS.split(), *MORE.split(), *MARKS])


@given(st.one_of(st.binary(max_size=80), st.lists(WORDS).map(lambda w: "".join(w).encode())))
@example(b'version: 1\nabout: "\\U00110000"\n')
@example(b"%YAML 1." + b"1" * 5000 + b"\n---\nversion: 1\n")
def test_any_bytes_are_a_policy_or_problems_with_a_place(data: bytes) -> None:
    content, problems = decode(Document("f", data))
    assert (content is None) == bool(problems)
    for problem in problems:
        assert problem.line is not None
        assert problem.column is not None
        assert problem.hint
        assert str(problem).isprintable() or "\n" in str(problem)
