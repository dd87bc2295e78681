# SPDX-License-Identifier: GPL-2.0-or-later
"""Why forwarded packets are handled where they are: queue, CPU, TX queue, CPU, in sentences. Pure:
`docs/forwarding.md` has the way of such a packet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from atfnd.model import Distance, NicView, Pair, Pairs
from atfnd.serve.explain.chain import queue_link, queue_of
from atfnd.serve.explain.explain import Explanation, pin

__all__ = ["Ends", "explain_pair"]

_VERDICTS = {
    Distance.CPU: "CPU {cpu} does all of it, and takes back what it has sent",
    Distance.CORE: "CPUs {cpu} and {tx_cpu} share a core",
    Distance.LLC: "CPUs {cpu} and {tx_cpu} share a last-level cache, and no core",
    Distance.NODE: "CPUs {cpu} and {tx_cpu} are on one NUMA node, behind different caches",
    Distance.MACHINE: "CPUs {cpu} and {tx_cpu} are on different NUMA nodes",
}


class Ends(NamedTuple):
    """Which pair is asked for; a queue of None is any."""

    ingress: str
    rx_queue: int | None
    egress: str
    tx_queue: int | None

    def __str__(self) -> str:
        def end(nic: str, queue: int | None) -> str:
            return nic if queue is None else f"{nic} (queue {queue})"

        return f"from {end(self.ingress, self.rx_queue)} to {end(self.egress, self.tx_queue)}"

    def has(self, pair: Pair) -> bool:
        return (
            self.ingress in (pair.ingress, *pair.among)
            and self.egress == pair.egress
            and self.rx_queue in (None, pair.rx_queue)
            and self.tx_queue in (None, pair.tx_queue)
        )


def explain_pair(
    ends: Ends, found: Pairs, nics: Mapping[str, NicView]
) -> tuple[Pair | None, Explanation]:
    """The one with most packets, and why it is so; `nics` are those that are watched."""
    if found.why_not is not None:
        return None, Explanation((), f"Not counted: {found.why_not}.", None)
    those = [pair for pair in found.pairs if ends.has(pair)]
    if not those:
        verdict = f"No packet was forwarded {ends} in {found.seconds:.1f} s."
        return None, Explanation((), verdict, "what is forwarded: atfnctl pairs")
    pair, ingress, egress = those[0], nics.get(those[0].ingress), nics.get(those[0].egress)
    chain = [
        _pair_link(pair, those),
        *_ingress_links(pair, ingress),
        _xps_link(pair, egress),
        *_egress_links(pair, egress),
    ]
    sharing = sorted(
        {
            each.cpu
            for each in found.pairs
            if (each.egress, each.tx_queue) == (pair.egress, pair.tx_queue)
        }
    )
    if len(sharing) > 1:
        cpus = ", ".join(map(str, sharing))
        chain.append(f"CPUs {cpus} send by this TX queue, and wait for each other's lock.")
    if pair.rule is not None:
        chain.append(f"The forwarding rule {pair.rule} places its channels: {pair.why}.")
    advice = _advice(pair, ingress, egress, len(sharing) > 1)
    return pair, Explanation(tuple(chain), _verdict(pair), advice)


def _pair_link(pair: Pair, those: list[Pair]) -> str:
    link = (
        f"CPU {pair.cpu} forwards {pair.packets_pps:.0f} packets/s from {pair.ingress} to TX queue "
        f"{pair.tx_queue} of {pair.egress}"
    )
    if len(those) == 1:
        return f"{link}."
    share = pair.packets / sum(each.packets for each in those)
    return f"{link}: {share:.0%} of what was asked for, the most of {len(those)} pairs."


def _ingress_links(pair: Pair, nic: NicView | None) -> list[str]:
    if pair.among:
        *others, last = pair.among
        below = f"{', '.join(others)} and {last}"
        return [f"{pair.ingress} stands upon {below}: by which of them they come in is not known."]
    if nic is None:
        return [f"{pair.ingress} is not watched: by which queue they come in is not known."]
    if rps := _rps(nic):
        index, cpus = rps
        return [f"RPS hands what comes in by queue {index} of {nic.name} to CPUs {cpus}."]
    served = [queue for queue in nic.queues if queue.cpu == pair.cpu]
    if not served:
        loose = [queue for queue in nic.queues if queue.cpu is None]
        why = f"its queues are {loose[0].loose}" if loose else "it has none on that CPU"
        return [f"By which queue of {nic.name} they come in is not known: {why}."]
    named = ", ".join(str(queue.index) for queue in served)
    chosen = f"RSS of {nic.name}, or a filter, chooses queue {named}"
    if len(served) > 1:
        chosen = f"RSS of {nic.name}, or a filter, chooses one of the queues {named}"
    return [f"{chosen}.", *(queue_link(nic, queue) for queue in served[:1])]


def _xps_link(pair: Pair, nic: NicView | None) -> str:
    if nic is None:
        return f"{pair.egress} is not watched: what chooses its TX queue is not known."
    mine = _xps_queues(nic, pair.cpu)
    if not mine:
        return (
            f"No TX queue of {nic.name} has CPU {pair.cpu} in its xps_cpus: the number of the "
            f"receive queue chooses it, modulo the queues of {nic.name}."
        )
    named = ", ".join(map(str, mine))
    link = f"xps_cpus gives CPU {pair.cpu} TX queue {named} of {nic.name}"
    if pair.tx_queue not in mine:
        return f"{link}, but the driver, or a setting of before, has chosen {pair.tx_queue}."
    return f"{link}." if len(mine) == 1 else f"{link}: a hash chooses one."


def _egress_links(pair: Pair, nic: NicView | None) -> list[str]:
    if nic is None:
        return []
    queue = queue_of(nic, pair.tx_queue)
    if queue is None:
        return [f"{nic.name} has no channel {pair.tx_queue}: what takes back is not known."]
    return [f"What was sent is taken back where channel {queue.index} of {nic.name} is served.",
            queue_link(nic, queue)]  # fmt: skip


def _verdict(pair: Pair) -> str:
    if pair.distance is not None:
        said = _VERDICTS[pair.distance].format(cpu=pair.cpu, tx_cpu=pair.tx_cpu)
        return f"{said}."
    if pair.tx_cpu is None:
        return f"CPU {pair.cpu} sends; which CPU takes back is not known."
    return f"CPU {pair.cpu} sends, CPU {pair.tx_cpu} takes back; what they share is not known."


def _advice(
    pair: Pair, ingress: NicView | None, egress: NicView | None, shared: bool
) -> str | None:
    """One step, the first of docs/forwarding.md that is missing."""
    if ingress is not None and (rps := _rps(ingress)):
        return f"end RPS on {ingress.name}: empty rps_cpus of queue {rps[0]} and the others"
    if egress is None:
        return f"to see the channels of {pair.egress}, let atfnd watch it"
    if pair.distance is Distance.CPU:
        if not shared:
            return None
        return f"give each of these CPUs a TX queue of {egress.name} of its own, by xps_cpus"
    own = next((queue for queue in egress.queues if queue.cpu == pair.cpu), None)
    if own is not None:
        return (
            f"set xps_cpus of TX queue {own.index} of {egress.name} to CPU {pair.cpu}, where its "
            "channel is, while nothing is forwarded"
        )
    queue = queue_of(egress, pair.tx_queue)
    if queue is None:
        return None
    how = pin(queue, pair.cpu)
    return f"bring channel {queue.index} of {egress.name} to CPU {pair.cpu}{how and f': {how}'}"


def _rps(nic: NicView) -> tuple[int, str] | None:
    """A queue with RPS, and to which CPUs."""
    for queue in nic.queues:
        if cpus := nic.settings.get(f"rps-cpus:{queue.index}"):
            return queue.index, cpus
    return None


def _xps_queues(nic: NicView, cpu: int) -> list[int]:
    """TX queues that xps_cpus has for this CPU."""
    return [
        int(name.partition(":")[2])
        for name, cpus in nic.settings.items()
        if name.startswith("xps-cpus:") and _names(cpus, cpu)
    ]


def _names(cpus: str, cpu: int) -> bool:
    """A list of CPUs (`0,4-7`) has this one."""
    ranges = (part.partition("-") for part in cpus.split(",") if part)
    return any(int(low) <= cpu <= int(high or low) for low, _, high in ranges)
