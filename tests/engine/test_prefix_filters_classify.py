# SPDX-License-Identifier: GPL-2.0-or-later
"""Whatever flows and rules there are: a table that is shared classifies as one rule a flow would.

On NICs where the lowest location wins, and on those where the filter that names most does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from atfnd.model import FlowKey, FlowRule, Listening, Network
from bench.simulated import Load
from tests.engine.test_port_filters import OTHER
from tests.prefixed import HERE, LEFT, ORDERED, TCP, THERE, UDP, Bed, load, network
from tests.values import THREAD

__all__: list[str] = []

FAR = (Network(4, bytes([10, 9, 0, 0]), 16),)


def flows() -> st.SearchStrategy[list[Load]]:
    remotes = st.sampled_from(["10.1.0", "10.1.1", "10.1.128", "10.9.1"])
    return st.lists(
        st.builds(
            lambda net, host, port, remote_port, local, protocol, thread, rss, rate: load(
                f"{net}.{host}",
                remote_port if port > 1024 else 50_000 + host,  # from no service to a service
                thread,
                local_port=port,
                local=local,
                protocol=protocol,
                rss=rss,
                rate=rate,
            ),
            remotes,
            st.integers(1, 6),
            st.sampled_from([80, 443, 40_001, 40_002, 40_003, 40_004]),
            st.sampled_from([443, 8443, 50_001, 50_002, 50_003]),
            st.sampled_from([HERE, THERE]),
            st.sampled_from([TCP, UDP]),
            st.sampled_from([THREAD, OTHER]),
            st.integers(0, 3),
            st.integers(0, 10**8),
        ),
        max_size=16,
        unique_by=lambda each: each.key,
    )


def policies() -> st.SearchStrategy[tuple[FlowRule, ...]]:
    ends: list[dict[str, object]] = [
        {"remote": FAR},
        {"remote": (network("10.1.1.0", 24),)},
        {"remote": (network("10.1.0.4", 30),)},
        {"local": (network("10.0.0.2", 32),)},
        {"protocols": frozenset({UDP})},
        {"ports": ((443, 443),)},
        {"ports": ((80, 80),), "remote": FAR},
    ]
    rule = st.builds(
        lambda number, asks, left: replace(LEFT if left else ORDERED, name=f"r{number}", **asks),
        st.integers(0, 999),
        st.sampled_from(ends),
        st.booleans(),
    )
    some = st.lists(rule, max_size=3, unique_by=lambda each: each.name)
    return some.map(lambda rules: (*rules, ORDERED))


def listeners(loads: list[Load]) -> Iterator[Listening]:
    for number, port in enumerate((80, 443)):
        key = FlowKey(TCP, HERE, port, bytes(4), 0)
        yield Listening(0, 10_000 + number, key, 1)


@settings(deadline=None)
@given(
    first=flows(),
    then=flows(),
    rules=policies(),
    slots=st.sampled_from([16, 32, 48]),
    room=st.integers(0, 12),
    served=st.booleans(),
    puts_off=st.lists(st.booleans(), max_size=30),
)
def test_classified_as_with_one_rule_a_flow(
    first: list[Load], then: list[Load], rules: tuple[FlowRule, ...], slots: int, room: int,
    served: bool, puts_off: list[bool],
) -> None:  # fmt: skip
    who = tuple(listeners(first)) if served else ()
    made = Bed(first, rules, slots, min(room, slots), who)
    made.defers = lambda action: puts_off.pop() if puts_off else False
    made.start()
    for number in range(14):
        if number == 7:
            known = {each.key for each in made.loads}
            made.arrive(each for each in then if each.key not in known)
        made.look()
        made.check()
        assert len(made.held) <= room
