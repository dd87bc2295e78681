# SPDX-License-Identifier: GPL-2.0-or-later
"""A recording read back, and what a policy decides by it: as the daemon's own code would."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.errors import OperatorError
from atfnd.model import (
    Accepted,
    ActionKind,
    Connected,
    Connecting,
    FlowKey,
    InterfaceRule,
    Listening,
    Mode,
    NicView,
    Placement,
    Policy,
    Process,
    SocketGone,
    SocketSeen,
    SocketUse,
    SteeringMethod,
    Thread,
)
from atfnd.model.reason import Code
from atfnd.replay.codec import decoded, encoded
from atfnd.replay.recording import (
    FORMAT,
    Audited,
    Line,
    Looked,
    RecordedBirth,
    RecordedBirths,
    RecordedClose,
    RecordedListeners,
    RecordedMachine,
    RecordedSocket,
    RecordingEnd,
    Socket,
    line_of,
    lines_of,
)
from atfnd.replay.replay import Replay
from tests.daemons import ATFND, EVERYTHING
from tests.serve.published import lab, topology
from tests.values import NIC, RULE, key, seen

SECOND_NS = 10**9
ANYWHERE = InterfaceRule("*", "test:1", False, None, 0)
POLICY = Policy((ANYWHERE,), (RULE,), "auto", 100, 0, ("test",))
LEAVE = replace(POLICY, flows=(replace(RULE, placement=Placement.LEAVE),))
MACHINE = RecordedMachine(0, (replace(NIC, armed=False),), topology(), FORMAT)


def used(number: int, cpu: int, at_ns: int, rss_queue: int = 3) -> RecordedSocket:
    """A thread of its own uses flow `number`."""
    thread = Thread(number, number, "app", None)
    event = seen(number, cpu, at_ns=at_ns, off_since_ns=at_ns, thread=thread)
    return RecordedSocket(at_ns, NIC.name, event, rss_queue)


def audited(at_ns: int, *counts: tuple[int, int]) -> Audited:
    """Flows by number, with their bytes; each arrives on CPU 3."""
    uses = (SocketUse(1000 + n, key(n), None, 103, 3, (1 << 20) + count) for n, count in counts)
    return Audited(at_ns, tuple(uses))


def played(policy: Policy, *lines: Line, nic: NicView | None = None) -> Replay:
    replay = Replay(policy)
    first = MACHINE if nic is None else MACHINE._replace(nics=(nic,))
    for line in (first, *lines):
        replay.take(line)
    return replay


threads = st.builds(Thread, st.integers(1), st.integers(1), st.text(), st.none())
events = st.builds(
    SocketSeen, st.integers(0), st.integers(0), st.builds(key, st.integers(0, 9)),
    st.integers(0, 9), st.none() | threads,
    st.none() | st.integers(1), st.none() | st.integers(0, 9), st.integers(0), st.integers(0),
    st.none() | st.integers(0),
)  # fmt: skip
keys = st.builds(key, st.integers(0, 9))
numbers, maybe = st.integers(0), st.none() | st.integers(0)
born = st.one_of(
    st.builds(Connecting, numbers, numbers, keys, numbers, threads, numbers),
    st.builds(Connected, numbers, numbers, keys, numbers),
    st.builds(Listening, numbers, numbers, keys, numbers, st.none() | threads, maybe),
    st.builds(Accepted, numbers, numbers, keys, maybe),
    st.builds(SocketGone, numbers, numbers),
)
heard = st.builds(RecordedBirth, born, st.dictionaries(st.text(max_size=5), maybe, max_size=2))
sockets = st.builds(Socket, numbers, keys, maybe, st.none() | st.just("nic"), maybe)
some_lines = st.one_of(
    st.builds(RecordedBirths, numbers, st.lists(heard, max_size=3).map(tuple)),
    st.builds(RecordedListeners, numbers, st.just({"nic": (Listening(1, 2, key(3), 4),)})),
    st.builds(
        Looked,
        numbers,
        st.booleans(),
        st.lists(sockets).map(tuple),
        st.lists(st.tuples(numbers, keys)).map(tuple),
    ),
    st.builds(
        RecordedSocket, st.integers(0), st.text(max_size=5), events, st.none() | st.integers(0, 9)
    ),
    st.builds(RecordedClose, st.integers(0), st.integers(0)),
    st.just(audited(5, (1, 2), (3, 4))),
    st.builds(RecordingEnd, st.integers(0), st.integers(0)),
)


@given(st.lists(some_lines, max_size=5))
def test_what_is_written_is_read(lines: list[Line]) -> None:
    whole = [RecordedMachine(1, (lab(), NIC), topology(), FORMAT), *lines]
    text = [line_of(line) for line in whole]
    assert list(lines_of(text, "file")) == whole
    assert list(lines_of([*text, '{"seen": {"at'], "file")) == whole  # it was cut off


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ([], "file: it is empty"),
        (['{"gone": {"at_ns": 1, "cookie": 2}}\n'], "file:1: it does not begin with the machine"),
        ([line_of(MACHINE), '{"gone": {"at_ns": 1}}\n'], "file:2: RecordedClose"),
        ([line_of(MACHINE), '{"gone": {"at_ns": "x", "cookie": 1}}\n'], "file:2: expected int"),
        (
            [line_of(MACHINE), '{"births": {"at_ns": 1, "events": [{"event": {"other": {}}}]}}\n'],
            "file:2: 'other' is none of ",
        ),
        ([line_of(MACHINE), '{"births": {"at_ns": 1, "events": [{"event": {}}]}}\n'], "file:2: "),
        ([line_of(MACHINE), '{"other": {}}\n'], "file:2: "),
        ([line_of(MACHINE), "[]\n"], "file:2: "),
        ([line_of(MACHINE), "what\n"], "file:2: "),
    ],
)
def test_what_is_none_is_said_with_its_place(text: list[str], said: str) -> None:
    with pytest.raises(OperatorError, match="no recording") as refused:
        list(lines_of(text, "file"))
    assert said in refused.value.message
    assert refused.value.exit_code == 2


def test_a_recording_of_another_format_is_refused() -> None:
    with pytest.raises(OperatorError) as refused:
        list(lines_of([line_of(MACHINE._replace(format=FORMAT + 1))], "file"))
    assert (refused.value.message, refused.value.exit_code) == (
        "file:1: format 2, of another version of atfnd", 2,
    )  # fmt: skip
    assert refused.value.hint == "this one replays format 1"


def test_a_field_of_a_later_version_is_passed_over() -> None:
    data = encoded(NIC) | {"colour": "green"}
    assert decoded(type(NIC), data) == NIC


def test_a_flow_is_steered_follows_its_thread_and_ends() -> None:
    second = SECOND_NS
    replay = played(
        POLICY, used(1, 2, second), used(1, 0, 2 * second), RecordedClose(3 * second, 1001),
    )  # fmt: skip
    output = [(each.at_ns, each.action.kind, each.action.new) for each in replay.decided]
    assert output == [
        (second, ActionKind.INSERT, 2),
        (2 * second, ActionKind.REWRITE, 0),
        (3 * second, ActionKind.DELETE, None),
    ]
    assert (replay.most_filters, len(replay.memory.table)) == (1, 0)


def test_what_rss_has_right_takes_no_filter_whatever_was_steered_then() -> None:
    """It was recorded on CPU 3 because a rule led it there; RSS alone has it on 2."""
    replay = played(POLICY, used(1, 2, SECOND_NS, rss_queue=2))
    assert replay.decided == []


def test_locality_is_that_of_the_replayed_rules() -> None:
    lines = used(1, 2, SECOND_NS), used(2, 3, SECOND_NS), audited(3 * SECOND_NS, (1, 300), (2, 100))
    left, steered = played(LEAVE, *lines), played(POLICY, *lines)
    for replay in (left, steered):
        assert (replay.bytes_seen, replay.bytes_there) == (400, 100)
    assert (left.bytes_replayed, steered.bytes_replayed) == (100, 400)
    assert (left.decided, left.matching.matched) == ([], {"rest": {key(1), key(2)}})


def test_a_flow_that_grows_into_a_rule_is_steered_then() -> None:
    big = replace(POLICY, flows=(replace(RULE, min_bytes=2 << 20),))
    lines = (
        used(1, 2, SECOND_NS),
        audited(3 * SECOND_NS, (1, 10)),
        audited(5 * SECOND_NS, (1, 1 << 20)),
    )
    (decided,) = played(big, *lines).decided
    assert (decided.at_ns, decided.action.kind) == (5 * SECOND_NS, ActionKind.INSERT)


def test_an_idle_flow_ages_out_by_the_policys_own_time() -> None:
    brief = replace(POLICY, flows=(replace(RULE, t_delete_ns=SECOND_NS),))
    lines = used(1, 2, 0), audited(SECOND_NS // 2, (1, 0)), audited(2 * SECOND_NS, (1, 0))
    assert [each.action.kind for each in played(brief, *lines).decided] == [
        ActionKind.INSERT, ActionKind.DELETE,
    ]  # fmt: skip
    assert len(played(POLICY, *lines).decided) == 1


def test_a_longer_dwell_is_kept_by_the_recordings_clock() -> None:
    slow = replace(POLICY, flows=(replace(RULE, dwell_ns=SECOND_NS),))
    lines = used(1, 2, SECOND_NS), RecordedClose(9 * SECOND_NS, 77)
    (decided,) = played(slow, *lines).decided
    assert decided.at_ns == 2 * SECOND_NS


def test_a_nic_without_filters_is_replayed_by_its_table() -> None:
    nic = replace(NIC, armed=False, method=SteeringMethod.RSS, method_why=Code.KERNEL("no filters"))
    nic = replace(nic, caps=replace(nic.caps, filters=False))
    (decided,) = played(POLICY, used(1, 2, SECOND_NS, rss_queue=3), nic=nic).decided
    assert (decided.action.kind, decided.action.setting) == (ActionKind.SETTING, "rss")


# Births that were recorded, and what a policy decides by them: ports, connects, ends.

ORDERED = replace(POLICY, flows=(replace(RULE, order=Mode.STRICT),))
SERVER = Thread(7, 7, "server", None)
PORT = key(0)._replace(remote=bytes(4), remote_port=0)
EXACT = replace(NIC, armed=False, caps=replace(NIC.caps, exact_wins=True))


def opened(at_ns: int, cpu: int = 2, port: FlowKey = PORT) -> RecordedBirths:
    return RecordedBirths(
        at_ns, (RecordedBirth(Listening(at_ns, 1, port, 9, SERVER, cpu, True), {"nic": None}),)
    )


def ports(at_ns: int, *came: int, gone: tuple[int, ...] = ()) -> Looked:
    """A look at ports; connections by number come, which RSS has on queue 3, and go."""
    sockets = tuple(Socket(1000 + n, key(n), 103, "nic", 3) for n in came)
    return Looked(at_ns, True, sockets, tuple((1000 + n, key(n)) for n in gone))


def inserted(policy: Policy, *lines: Line) -> list[tuple[int, FlowKey | None, int | None]]:
    decided = played(policy, *lines, nic=EXACT).decided
    inserts = (each for each in decided if each.action.kind is ActionKind.INSERT)
    return [(each.at_ns, each.action.key, each.action.new) for each in inserts]


def test_a_port_has_one_rule_and_its_connections_none() -> None:
    """They come by it where they are used, or have one each by a policy that keeps no order."""
    lines = opened(1), ports(2), used(1, 2, 3), used(2, 2, 4), ports(5, 1, 2)
    assert inserted(ORDERED, *lines) == [(2, PORT, 2)]
    assert inserted(POLICY, *lines) == [(3, key(1), 2), (4, key(2), 2)]


def test_a_port_waits_until_no_live_connection_would_move() -> None:
    lines = opened(1), ports(2, 1), ports(3, gone=(1,)), ports(4)
    assert inserted(ORDERED, *lines) == [(3, PORT, 2)]


def test_listeners_that_were_there_serve_who_uses_their_connections() -> None:
    lines = (
        RecordedListeners(1, {"nic": (Listening(1, 1, PORT, 9),)}),
        ports(2),
        used(1, 2, 3),
        ports(4),
    )
    assert inserted(ORDERED, *lines) == [(3, key(1), 2), (4, PORT, 2)]


def test_whose_a_port_is_may_depend_on_the_recorded_process() -> None:
    policy = replace(ORDERED, flows=(replace(ORDERED.flows[0], users=frozenset({1000})),))
    heard = opened(1).events[0]
    for uid, count in ((1000, 1), (0, 0)):
        births = RecordedBirths(1, (heard._replace(process=Process(uid=uid)),))
        assert len(inserted(policy, births, ports(2))) == count


def connects(number: int, at_ns: int, *more: RecordedBirth) -> RecordedBirths:
    """A thread connects on CPU 2; RSS has it on queue 3."""
    event = Connecting(at_ns, 1000 + number, key(number), 9, SERVER, 2)
    return RecordedBirths(at_ns, (RecordedBirth(event, {"nic": 3}), *more))


def answered(number: int, at_ns: int) -> RecordedBirth:
    return RecordedBirth(Connected(at_ns, 1000 + number, key(number), 1_000_000))


def test_a_connect_to_a_remote_that_is_known_is_placed_at_its_birth() -> None:
    before = connects(1, 1), RecordedBirths(2, (answered(1, 2),))
    to = key(1)._replace(local_port=444)
    again = RecordedBirth(Connecting(3, 5, to, 9, SERVER, 2), {"nic": 3})
    assert inserted(ORDERED, *before, RecordedBirths(3, (again,))) == [(3, to, 2)]
    assert inserted(POLICY, *before, RecordedBirths(3, (again,))) == []
    late = RecordedBirth(Connected(4, 5, to, 1_000_000))
    assert (
        inserted(ORDERED, *before, RecordedBirths(4, (again, late))) == []
    )  # it was answered by then


def test_what_is_born_lives_until_its_socket_ends() -> None:
    to = key(1)._replace(local_port=444)
    lines = (
        connects(1, 1), RecordedBirths(2, (answered(1, 2),)),
        RecordedBirths(3, (RecordedBirth(Connecting(3, 5, to, 9, SERVER, 2), {"nic": 3}),)),
        audited(4), RecordedBirths(5, (RecordedBirth(Connected(5, 5, to, 9)),)), audited(6),
        RecordedBirths(7, (RecordedBirth(SocketGone(7, 5)),)),
    )  # fmt: skip
    reported = [
        (each.at_ns, each.action.kind) for each in played(ORDERED, *lines, nic=EXACT).decided
    ]
    assert reported == [(3, ActionKind.INSERT), (7, ActionKind.DELETE)]


def test_a_nic_that_is_read_again_keeps_the_queues_where_they_were_moved() -> None:
    """Threads that keep order take their queue along."""
    strict = [used(1, 2, SECOND_NS), used(1, 0, 2 * SECOND_NS)]
    more = replace(EXACT, caps=replace(EXACT.caps, why="proven"), foreign=1)
    again = RecordedMachine(3 * SECOND_NS, (more,), topology(), FORMAT)
    replay = played(ORDERED, *strict, again, used(2, 0, 4 * SECOND_NS), nic=EXACT)
    kinds = [each.action.kind for each in replay.decided]
    assert kinds[:2] == [ActionKind.INSERT, ActionKind.QUEUE_CPU]
    assert ActionKind.QUEUE_CPU not in kinds[2:]


def test_the_verb(tmp_path: Path) -> None:
    recording, config = tmp_path / "seen.jsonl", tmp_path / "atfnd.yaml"
    lines: list[Line] = [MACHINE, used(1, 2, SECOND_NS), audited(3 * SECOND_NS, (1, 4096))]
    lines.append(RecordingEnd(4 * SECOND_NS, 3))
    recording.write_text("".join(map(line_of, lines)))
    config.write_text(EVERYTHING)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        given = [ATFND, "replay", str(recording), "--policy", str(config), *words]
        return subprocess.run(given, capture_output=True, text=True)

    output = run("--actions").stdout.splitlines()
    assert output[0].split()[:4] == ["1.020", "insert", "nic", "tcp"]
    assert output[1] == "4.0 s recorded; decided: 1 insert"
    assert f"  everything: 1 flows, 1 actions ({config}:5)" in output
    assert "bytes on the application's core: 0.0% recorded, 100.0% replayed" in output
    assert output[-1] == "3 lines were lost while it was recorded"
    found = json.loads(run("--json").stdout)
    assert (found["kinds"], len(found["actions"])) == ({"insert": 1}, 1)
    config.write_text("version: 2\n")
    assert run().returncode == 2
    recording.write_text("what\n")
    config.write_text(EVERYTHING)
    assert run().stderr.startswith(f"atfnd: no recording: {recording}:1: ")
