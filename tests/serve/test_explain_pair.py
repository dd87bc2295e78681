# SPDX-License-Identifier: GPL-2.0-or-later
"""The sentences of `explain --pair`, for every way a packet can be forwarded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atfnd.model import Distance, NicView, Pair, Pairs
from atfnd.serve.explain.explain import Explanation
from atfnd.serve.explain.pair import Ends, explain_pair
from tests.serve.shown import lab

XPS = {f"xps-cpus:{n}": str(n) for n in range(4)}
IN = replace(lab(), name="eth0")
OUT = replace(lab(), name="eth1", settings=XPS)
LOCAL = Pair("eth0", 2, "eth1", 2, 2, 2, Distance.CPU, 6_000, 3_000.0, 64_000.0)
FAR = replace(LOCAL, tx_queue=3, tx_cpu=3, distance=Distance.MACHINE, packets=2_000)
ANY = Ends("eth0", None, "eth1", None)


def found(*pairs: Pair) -> Pairs:
    return Pairs(2.0, None, 0, pairs)


def explained(*pairs: Pair, ingress: NicView | None = IN, egress: NicView | None = OUT,
              ends: Ends = ANY) -> Explanation:  # fmt: skip
    nics = {nic.name: nic for nic in (ingress, egress) if nic is not None}
    return explain_pair(ends, found(*pairs), nics)[1]


def irq_driven(nic: NicView) -> NicView:
    queues = (
        replace(queue, irq=40 + queue.index, threaded=False, pid=None) for queue in nic.queues
    )
    return replace(nic, queues=tuple(queues))


def test_a_pair_on_one_cpu_has_its_whole_way_and_no_advice() -> None:
    assert explained(LOCAL, egress=irq_driven(OUT)) == Explanation(
        (
            "CPU 2 forwards 3000 packets/s from eth0 to TX queue 2 of eth1.",
            "RSS of eth0, or a filter, chooses queue 2.",
            "Queue 2 is polled by NAPI 8195 in kernel thread 902, on CPU 2.",
            "xps_cpus gives CPU 2 TX queue 2 of eth1.",
            "What was sent is taken back where channel 2 of eth1 is served.",
            "Queue 2 is polled by NAPI 8195 after interrupt 42, on CPU 2.",
        ),
        "CPU 2 does all of it, and takes back what it has sent.",
        None,
    )


def test_of_several_the_one_with_most_packets_is_explained() -> None:
    pair, answer = explain_pair(ANY, found(LOCAL, FAR), {"eth0": IN, "eth1": OUT})
    assert pair == LOCAL
    assert answer.chain[0] == (
        "CPU 2 forwards 3000 packets/s from eth0 to TX queue 2 of eth1: 75% of what was asked for, "
        "the most of 2 pairs."
    )
    for ends in (ANY._replace(tx_queue=3), ANY._replace(tx_queue=3, rx_queue=2)):
        assert explain_pair(ends, found(LOCAL, FAR), {})[0] == FAR
    assert explain_pair(ANY._replace(rx_queue=1), found(LOCAL, FAR), {})[0] is None


BOND = replace(LOCAL, ingress="bond0", rx_queue=None, among=("eth0", "eth5"))
UNKNOWN = replace(LOCAL, rx_queue=None, tx_cpu=None, distance=None)
LONE = replace(LOCAL, tx_queue=9, tx_cpu=None, distance=None)
PLACED = replace(LOCAL, rule="gateway", why="channels of one number are on one CPU")
RPS = replace(IN, settings={"rps-cpus:0": "", "rps-cpus:1": "2-3"})
HASHED = replace(OUT, settings={"xps-cpus:0": "0,2-3", "xps-cpus:1": "12", "xps-cpus:3": "1-2"})
ONE_CHANNEL = replace(OUT, queues=OUT.queues[:1])


@pytest.mark.parametrize(
    ("pair", "ingress", "egress", "said"),
    [
        (FAR, IN, OUT,
         "xps_cpus gives CPU 2 TX queue 2 of eth1, but the driver, or a setting of before, has "
         "chosen 3."),
        (FAR, IN, replace(OUT, settings={}),
         "No TX queue of eth1 has CPU 2 in its xps_cpus: the number of the receive queue chooses "
         "it, modulo the queues of eth1."),
        (FAR, IN, HASHED, "xps_cpus gives CPU 2 TX queue 0, 3 of eth1: a hash chooses one."),
        (FAR, RPS, OUT, "RPS hands what comes in by queue 1 of eth0 to CPUs 2-3."),
        (BOND, IN, OUT,
         "bond0 stands upon eth0 and eth5: by which of them they come in is not known."),
        (LOCAL, replace(IN, queues=(replace(IN.queues[2], cpu=None),)), OUT,
         "By which queue of eth0 they come in is not known: its queues are not confined to one "
         "CPU."),
        (UNKNOWN, None, None, "eth0 is not watched: by which queue they come in is not known."),
        (LONE, IN, ONE_CHANNEL, "eth1 has no channel 9: what takes back is not known."),
        (PLACED, IN, OUT,
         "The forwarding rule gateway places its channels: channels of one number are on one "
         "CPU."),
    ],
    ids=range(9),
)  # fmt: skip
def test_links_of_the_chain(
    pair: Pair, ingress: NicView | None, egress: NicView | None, said: str
) -> None:
    ends = ANY._replace(ingress=pair.ingress)
    assert said in explained(pair, ingress=ingress, egress=egress, ends=ends).chain


def test_a_nic_of_a_bond_has_what_came_by_the_bond() -> None:
    assert explained(BOND, ends=ANY._replace(ingress="eth5")).chain
    assert explained(BOND, ends=ANY._replace(ingress="eth6")).chain == ()


APART = "CPUs 2 and 3 are on different NUMA nodes."
SET_XPS = "set xps_cpus of TX queue 2 of eth1 to CPU 2, where its channel is, while nothing is"


@pytest.mark.parametrize(
    ("pair", "ingress", "egress", "verdict", "advice"),
    [
        (FAR, IN, OUT, APART, f"{SET_XPS} forwarded"),
        (FAR, IN, replace(OUT, queues=(replace(OUT.queues[3], threaded=False, pid=None, irq=9),)),
         APART,
         "bring channel 3 of eth1 to CPU 2: echo 2 > /proc/irq/9/smp_affinity_list (queue 3)"),
        (FAR, RPS, OUT, APART, "end RPS on eth0: empty rps_cpus of queue 1 and the others"),
        (UNKNOWN, None, None, "CPU 2 sends; which CPU takes back is not known.",
         "to see the channels of eth1, let atfnd watch it"),
        (LONE, IN, ONE_CHANNEL, "CPU 2 sends; which CPU takes back is not known.", None),
        (replace(FAR, distance=None), IN, OUT,
         "CPU 2 sends, CPU 3 takes back; what they share is not known.", f"{SET_XPS} forwarded"),
    ],
    ids=range(6),
)  # fmt: skip
def test_what_it_comes_to_and_what_helps(
    pair: Pair, ingress: NicView | None, egress: NicView | None, verdict: str, advice: str | None
) -> None:
    answer = explained(pair, ingress=ingress, egress=egress)
    assert (answer.verdict, answer.advice) == (verdict, advice)


def test_a_tx_queue_that_several_cpus_use() -> None:
    other = replace(LOCAL, ingress="eth5", cpu=0, tx_cpu=2, distance=Distance.LLC)
    answer = explained(LOCAL, other)
    assert "CPUs 0, 2 send by this TX queue, and wait for each other's lock." in answer.chain
    assert answer.advice == "give each of these CPUs a TX queue of eth1 of its own, by xps_cpus"
    beside = replace(other, tx_queue=0, tx_cpu=0, distance=Distance.CPU)
    assert explained(LOCAL, beside) == explained(LOCAL)


def test_nothing_forwarded_and_nothing_counted() -> None:
    ends = Ends("eth0", 2, "eth7", None)
    pair, answer = explain_pair(ends, found(LOCAL), {})
    said = "No packet was forwarded from eth0 (queue 2) to eth7 in 2.0 s."
    assert (pair, answer.verdict) == (None, said)
    assert answer.advice == "what is forwarded: atfnctl pairs"
    refused = replace(found(), why_not="the kernel refuses the program")
    assert explain_pair(ANY, refused, {})[1].verdict == (
        "Not counted: the kernel refuses the program."
    )
