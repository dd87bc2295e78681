# SPDX-License-Identifier: GPL-2.0-or-later
"""What surrounds the NICs and works against steering: daemons, settings, rights, kernel. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from shlex import quote

from atfnd.model import Finding, Level, LinkFile, Machine, NicView, Rival, cpu_list

__all__ = ["examine_machine", "rivals_of"]

_RIGHTS = {
    "CAP_NET_ADMIN": (Level.BLOCKER, "no filter, table or queue can be changed"),
    "CAP_SYS_NICE": (Level.WARNING, "NAPI threads cannot be given a CPU"),
    "CAP_BPF": (Level.WARNING, "the kernel refuses the BPF observer"),
    "CAP_PERFMON": (Level.WARNING, "the kernel does not let the BPF observer trace"),
}
# In names of profiles of tuned that move interrupts, where no file says what they do.
_ISOLATES = ("cpu-partitioning", "realtime", "isolat")


def examine_machine(
    machine: Machine, observer: tuple[str, str] | None, watched: Collection[str] | None
) -> tuple[Finding, ...]:
    """Findings that concern no single NIC. `observer` is the one that sees sockets, and why it is
    this one; None: none was attached. `watched` are the interfaces that atfnd was started with;
    None: the others are not asked about."""
    return (
        *(() if observer is None else _observer(machine, *observer)),
        *_rights(machine),
        *_kernel(machine),
        *_busy_polling(machine),
        *_daemons(machine),
        *(
            Finding(
                None,
                Level.NOTE,
                f"{each.name} ({each.driver or 'unknown driver'}, {each.queues} queues) is not "
                "watched",
                f"start atfnd with --nic {quote(each.name)} as well; what it could do there: "
                f"atfnctl doctor {quote(each.name)}",
            )
            for each in machine.interfaces
            if watched is not None and each.name not in watched
        ),
    )


def _observer(machine: Machine, name: str, why: str) -> Iterator[Finding]:
    """The running observer was found by attaching it: that proves more than any feature list."""
    if name == "bpf":
        yield Finding(None, Level.OK, f"sockets are observed by BPF: {why}")
        return
    advice = "Linux before 6.3 lacks what it needs; atfnd run --nic NIC --observer bpf says more"
    if not machine.btf:
        advice = "run a kernel with CONFIG_DEBUG_INFO_BTF"
    elif machine.lockdown == "confidentiality":
        advice = "the kernel is locked down: boot with lockdown=integrity, or without"
    yield Finding(
        None,
        Level.WARNING,
        f"sockets are observed by {name} ({why}): later, at a higher "
        "cost, and without the queues packets come from",
        advice,
    )


def _rights(machine: Machine) -> Iterator[Finding]:
    for name in sorted(machine.missing_capabilities):
        level, effect = _RIGHTS.get(name, (Level.WARNING, "something will be refused"))
        advice = f"AmbientCapabilities={name} in the unit, or run it as root"
        yield Finding(None, level, f"the daemon lacks {name}: {effect}", advice)


def _kernel(machine: Machine) -> Iterator[Finding]:
    if not machine.netdev_family:
        what = "the kernel has no netdev netlink family: a queue's interrupt is known by its name"
        yield Finding(None, Level.NOTE, what)
    if not machine.ethtool_family:
        what = "the kernel has no ethtool netlink family: changes are noticed at the next look only"
        yield Finding(None, Level.NOTE, what)


def _busy_polling(machine: Machine) -> Iterator[Finding]:
    """A queue that an application polls cannot be held (`move.choose`)."""
    if machine.busy_polling:
        on = " and ".join(machine.busy_polling)
        what = (
            f"by {on} applications may poll queues themselves: strict order then moves no "
            "established flow; it places flows during their handshake, and queues follow threads"
        )
        off = " ".join(f"{each}=0" for each in machine.busy_polling)
        yield Finding(None, Level.WARNING, what, f"unless you need busy polling: sysctl -w {off}")


def _daemons(machine: Machine) -> Iterator[Finding]:
    for rival in machine.rivals:
        who = f"{rival.name} (pid {rival.pid})"
        if rival.name == "tuned":
            profile = rival.profile or "none"
            moves = bool(rival.moves)
            does = f" ({', '.join(rival.moves)})" if rival.moves else ""
            if rival.moves is None:
                moves = any(word in profile for word in _ISOLATES)
            yield Finding(
                None,
                Level.WARNING if moves else Level.NOTE,
                f"{who}, profile {profile}, "
                + (
                    f"moves interrupts{does}" if moves else "may set interrupts, channels and rings"
                ),
                "leave [irqbalance], [net] and isolated_cores out of its profile; it undoes its "
                "settings when it stops",
            )
        elif rival.name == "numad":
            yield Finding(
                None,
                Level.NOTE,
                f"{who} moves processes between NUMA nodes: their flows follow, a move each",
                "bind what you steer (taskset, numactl), or stop it",
            )


def rivals_of(nic: NicView, machine: Machine) -> Iterator[Finding]:
    """Daemons and settings that move this NIC's interrupts or change its filters."""
    for rival in machine.rivals:
        if rival.name == "irqbalance":
            yield from _irqbalance(nic, rival)
    device = nic.name.rpartition(":")[2]
    for file in machine.link_files:
        if nic.netns is None and device in file.interfaces:
            yield Finding(
                nic.name,
                Level.WARNING,
                f"{file.path} sets {', '.join(file.settings)} whenever the interface appears",
                _take_out(file),
            )


def _take_out(file: LinkFile) -> str:
    if file.by == "NetworkManager":
        keys = " ".join(
            f"{quote('ethtool.' + each.partition('=')[0])} ''" for each in file.settings
        )
        return f"nmcli connection modify NAME {keys}"
    return "take the setting out; the file's place in /etc/systemd/network wins over others"


def _irqbalance(nic: NicView, rival: Rival) -> Iterator[Finding]:
    irqs = {queue.irq for queue in nic.queues if queue.irq is not None}
    moved = irqs - rival.banned_irqs
    who = f"irqbalance (pid {rival.pid})"
    if not irqs:
        return
    if not moved:
        what = f"{who} leaves its interrupts alone"
        yield Finding(nic.name, Level.OK, what)
        return
    if not rival.answers:
        yield Finding(
            nic.name,
            Level.NOTE,
            f"{who} does not say now whether it leaves its interrupts {cpu_list(moved)} alone",
            "ask again: it answers nothing for some seconds after a request",
        )
        return
    bans = " ".join(f"--banirq={irq}" for irq in sorted(moved)[:4]) + " ..." * (len(moved) > 4)
    yield Finding(
        nic.name,
        Level.WARNING,
        f"{who} moves its interrupts {cpu_list(moved)}: no queue stays on its CPU",
        (
            "atfnd could not make it leave them alone (atfnctl events): "
            if nic.armed
            else "once armed, atfnd asks it to leave them alone; or "
        )
        + f"ban them in IRQBALANCE_ARGS (/etc/default/irqbalance): {bans}",
    )
