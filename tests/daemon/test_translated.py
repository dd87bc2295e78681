# SPDX-License-Identifier: GPL-2.0-or-later
"""A router on a stick: the lab NIC's host translates what the peer sends to one of its own other
addresses, so that both directions come in by one NIC."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from atfnd.kernel.system.netns import open_socket, write_sysctl
from atfnd.model import Filter, FlowKey, Match, Protocol
from atfnd.model.toeplitz import rss_queue
from tests.daemons import Daemon, policy
from tests.labs import Lab, a_lab
from tests.masquerade import flush, masquerade, redirect
from tests.netns import packed
from tests.wait import until

__all__: list[str] = []

FROM, ROUTER, SERVICE, TO = "10.8.0.1", "10.9.0.1", "10.9.0.2", "10.8.0.2"
PORT, SIZE, ANSWER = 9, 1400, 100
GATEWAY = """\
forwarding:
  - name: gateway
    match: {{ in: "lab:*", out: "lab:*" }}
    placement: {{ pair: leave }}
    order: {order}
    translated: {{ filters: {filters} }}
"""


def gateway(filters: int = 4, order: str = "bounded") -> str:
    return policy() + GATEWAY.format(filters=filters, order=order)


@dataclass
class Talk:
    """A flow that goes on until its test ends. Most bytes come from its client."""

    original: FlowKey
    reply: FlowKey


@dataclass
class Router:
    lab: Lab
    daemon: Daemon
    talks: ExitStack

    def start(self) -> None:
        name = self.lab.nic.name
        self.daemon.start("--nic", name, "--arm", name)

    def cpu_of(self, queue: int | None) -> int | None:
        return next((q.cpu for q in self.lab.nic.queues() if q.index == queue), None)

    def rss_cpu(self, key: FlowKey) -> int | None:
        return self.cpu_of(rss_queue(self.lab.nic.rss(), key))

    def filter(self, key: FlowKey) -> Filter | None:
        return next((f for f in self.lab.nic.filters() if f.match == Match.of(key)), None)

    def filters(self) -> int:
        return len(self.lab.nic.filters())

    def arrives(self, key: FlowKey) -> int | None:
        """The CPU that its packets come to: by its filter, or by RSS."""
        held = self.filter(key)
        return self.rss_cpu(key) if held is None else self.cpu_of(held.queue)

    def apart(self, first_port: int = 20_000) -> tuple[FlowKey, FlowKey]:
        """Keys of a flow from this port or a later one, of which RSS brings the directions to
        different CPUs."""
        for port in range(first_port, first_port + 1000):
            original = FlowKey(Protocol.UDP, packed(SERVICE), PORT, packed(FROM), port)
            reply = FlowKey(Protocol.UDP, packed(ROUTER), port, packed(TO), PORT)
            if self.rss_cpu(original) != self.rss_cpu(reply):
                return original, reply
        raise AssertionError("RSS brings all together")

    def talk(self, first_port: int = 20_000, pause_s: float = 0.002) -> Talk:
        talk, ended = Talk(*self.apart(first_port)), threading.Event()
        client = self._socket(FROM, talk.original.remote_port)
        client.connect((SERVICE, PORT))

        def send() -> None:
            while not ended.wait(pause_s):
                client.send(bytes(SIZE))

        sender = threading.Thread(target=send)
        sender.start()
        self.talks.callback(sender.join)
        self.talks.callback(ended.set)
        return talk

    def _socket(self, address: str, port: int) -> socket.socket:
        opened = open_socket(self.lab.netns["peer"], socket.AF_INET, socket.SOCK_DGRAM)
        self.talks.enter_context(opened)
        opened.bind((address, port))
        return opened

    def serve(self) -> None:
        """Answers every packet, with fewer bytes."""
        service = self._socket(TO, PORT)
        service.settimeout(0.1)
        ended = threading.Event()

        def answer() -> None:
            while not ended.is_set():
                with suppress(TimeoutError):
                    _, client = service.recvfrom(SIZE)
                    service.sendto(bytes(ANSWER), client)

        server = threading.Thread(target=answer)
        server.start()
        self.talks.callback(server.join)
        self.talks.callback(ended.set)

    def together(self, talk: Talk) -> Filter:
        """Wait until both directions come to one CPU. Returns the filter of the answers."""
        return until(
            lambda: (
                self.arrives(talk.original) == self.arrives(talk.reply) and self.filter(talk.reply)
            ),
            "both directions come to one CPU",
            60,
        )  # type: ignore[return-value]


@pytest.fixture
def router(tmp_path: Path) -> Iterator[Router]:
    with a_lab() as lab, ExitStack() as stack:
        host, peer = lab.netns["host"], Path(lab.netns["peer"]).name
        subprocess.run(["ip", "-n", peer, "addr", "add", f"{TO}/15", "dev", "p0"], check=True)
        masquerade(host)
        redirect(host, SERVICE, TO)
        made = Router(lab, Daemon(tmp_path, gateway()), stack.enter_context(ExitStack()))
        stack.callback(made.daemon.reap)
        made.serve()
        yield made


def test_the_answers_are_brought_to_the_cpu_of_the_other_direction(router: Router) -> None:
    talk = router.talk()
    cpu = router.rss_cpu(talk.original)
    router.start()
    held = router.together(talk)
    assert router.filter(talk.original) is None  # RSS delivers it there
    assert router.cpu_of(held.queue) == cpu
    until(lambda: (router.filter(talk.reply) or held).hits, "its packets come by the filter")
    until(lambda: (router.daemon.flow(talk.reply) or {}).get("move"), "its move has ended")
    row = router.daemon.flow(talk.reply)
    assert row is not None
    assert (row["move"]["mechanism"], row["move"]["verdict"]) == ("hold", "done")
    assert (row["state"], row["target_cpu"], row["policy"]) == (
        "steered",
        cpu,
        "forwarding gateway",
    )


def test_a_filter_ends_with_its_connection(router: Router) -> None:
    talk = router.talk()
    router.start()
    router.together(talk)
    router.talks.close()  # nothing is sent any more
    flush(router.lab.netns["host"])
    until(lambda: router.filters() == 0, "its filter is gone", 60)
    until(lambda: router.daemon.flow(talk.reply) is None, "its entry is gone")


def test_a_restarted_daemon_takes_the_filter_over(router: Router) -> None:
    talk = router.talk()
    router.start()
    held = router.together(talk)
    router.daemon.end(signal.SIGTERM)
    router.start()
    until(
        lambda: (router.daemon.flow(talk.reply) or {}).get("policy") == "forwarding gateway",
        "its rule is known again",
        60,
    )
    now = router.filter(talk.reply)
    assert now is not None
    assert (now.location, now.queue) == (held.location, held.queue)
    assert (now.hits or 0) >= (held.hits or 0)  # it was never deleted
    assert not router.daemon.events("delete")


def test_restore_leaves_none(router: Router) -> None:
    router.together(_started(router))
    assert router.daemon.ctl("restore").returncode == 0
    assert router.filters() == 0


def test_another_policy_takes_the_filters_away(router: Router) -> None:
    talk = _started(router)
    router.together(talk)
    router.daemon.config.write_text(policy())
    assert router.daemon.ctl("reload").returncode == 0
    until(lambda: router.filters() == 0, "its filter is gone", 60)
    until(lambda: router.daemon.flow(talk.reply) is None, "its entry is gone")


def test_a_filter_that_another_program_deletes_is_left_alone(router: Router) -> None:
    talk = _started(router)
    held = router.together(talk)
    router.lab.nic.delete(held.location)
    until(lambda: (router.daemon.flow(talk.reply) or {}).get("state") == "manual", "it is seen", 60)
    assert router.filter(talk.reply) is None


def test_strict_moves_nothing_where_packets_would_take_another_tx_queue(router: Router) -> None:
    router.daemon.config.write_text(gateway(order="strict"))
    _started(router)
    until(lambda: router.daemon.events("translated"), "it says why", 60)
    assert router.filters() == 0


def test_without_counters_it_says_what_is_missing(router: Router) -> None:
    write_sysctl(router.lab.netns["host"], "netfilter/nf_conntrack_acct", 0)
    _started(router)
    said = until(lambda: router.daemon.events("translated"), "it says why", 60)
    assert "nf_conntrack_acct=1" in said[0]["why"]
    assert router.filters() == 0


def _started(router: Router) -> Talk:
    talk = router.talk()
    router.start()
    return talk
