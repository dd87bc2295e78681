# SPDX-License-Identifier: GPL-2.0-or-later
"""The FLOW argument: every form names its flow, anything else is a clear error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atfnd.errors import OperatorError
from atfnd.model import FlowKey, Protocol
from atfnd.serve.api.selector import Selector
from tests.serve.published import flow


def keys() -> st.SearchStrategy[FlowKey]:
    def of(length: int) -> st.SearchStrategy[FlowKey]:
        address = st.binary(min_size=length, max_size=length) | st.just(bytes(length))
        port = st.integers(0, 65535)
        return st.builds(FlowKey, st.sampled_from(Protocol), address, port, address, port)

    return of(4) | of(16)


@given(keys())
def test_flow_text_round_trips(k: FlowKey) -> None:
    """Where both addresses are open the text fits either family, as its `*` says."""
    found = Selector.parse(str(k)).keys
    assert k in found
    assert len(found) == (1 if any(k.local) or any(k.remote) else 2)


@given(keys(), st.sampled_from(["{} {} {}", "{}  {}<-{}", "{} {}-{}", " {} {} <- {} "]))
def test_every_form_names_the_same_flow(k: FlowKey, form: str) -> None:
    protocol, local, _, remote = str(k).split()
    assert Selector.parse(form.format(protocol.upper(), local, remote)).keys == (
        Selector.parse(str(k)).keys
    )


@given(st.text())
def test_any_other_text_is_a_clear_error_or_a_flow(text: str) -> None:
    try:
        found: Selector | OperatorError = Selector.parse(text)
    except OperatorError as error:
        found = error
    if isinstance(found, OperatorError):
        assert found.exit_code == 2
        assert found.hint
    else:
        assert found.keys or found.cookie or found.port


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("[::ffff:10.0.0.2]:5201 [::ffff:10.9.0.1]:40000", "10.0.0.2:5201 10.9.0.1:40000"),
        ("10.0.0.2:5201 [::ffff:10.9.0.1]:40000", "10.0.0.2:5201 10.9.0.1:40000"),
        ("tcp [::ffff:a00:2]:5201-10.9.0.1:40000", "tcp 10.0.0.2:5201 10.9.0.1:40000"),
        ("udp 10.0.0.2%eth0:53 0.0.0.0:*", "udp 10.0.0.2:53 *:*"),
        ("udp [fe80::1]%eth0:546 [::]:*", "udp [fe80::1]:546 *:*"),
    ],
)
def test_a_flow_as_ss_prints_it(text: str, plain: str) -> None:
    assert Selector.parse(text).keys == Selector.parse(plain).keys


def test_a_number_is_a_cookie_or_a_port() -> None:
    cookie, port = flow(40_000), flow(7)
    assert Selector.parse("40000").matches(cookie)
    assert Selector.parse("1040000").matches(cookie)
    assert Selector.parse("cookie:1040000").matches(cookie)
    assert not Selector.parse("cookie:40000").matches(cookie)
    assert Selector.parse(":5201").matches(port)


@pytest.mark.parametrize(
    "text",
    [
        "", "tcp 10.0.0.2:5201", "icmp 10.0.0.2:5201 10.9.0.1:1", "10.0.0.2:0 10.9.0.1:1",
        "10.0.0.2:5201 10.9.0.1:1 10.9.0.1:2 x", "10.0.0.2 10.9.0.1:1", "10.0.0.2:65536 10.9.0.1:1",
        "host.example:1 10.9.0.1:1", "[::1]:1 10.9.0.1:1", "cookie:0", "cookie:-1",
        "cookie:99999999999999999999", ":0", ":70000", "٤٢", "1" * 201,
    ],
)  # fmt: skip
def test_what_is_not_a_flow(text: str) -> None:
    with pytest.raises(OperatorError) as caught:
        Selector.parse(text)
    assert caught.value.exit_code == 2
    assert caught.value.hint
