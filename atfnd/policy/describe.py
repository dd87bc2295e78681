# SPDX-License-Identifier: GPL-2.0-or-later
"""What each key of a policy file means, in a sentence: shown by editors and in docs/policies.md."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["KEYS", "MAPPINGS"]

# By mapping of the schema.
MAPPINGS: Mapping[str, str] = {
    "PolicyFile": "A policy file of atfnd: which flows are steered, how, and on which interfaces.",
    "DaemonEntry": "Settings of the daemon itself. One file may have them.",
    "TableEntry": "The Flow-to-Core table.",
    "SettleEntry": "How often flows may move.",
    "SharesEntry": "What one user, and one control group, may have where nobody else wants it. "
    "Where several do, each gets an equal share of filters and queues, whatever stands here.",
    "ShareEntry": "The most of one user, or of one control group.",
    "WebEntry": "A page for browsers, which every local user may read: docs/page.md.",
    "InterfaceEntry": "A rule for interfaces. The first that matches an interface decides.",
    "InterfaceMatchEntry": "Which interfaces a rule is for.",
    "RulesEntry": "Our share of an interface's filters.",
    "FlowEntry": "A rule for flows. The first that matches a flow decides.",
    "PlacementEntry": "Where a flow's packets are to arrive. One of `near`, `cpus`, `dedicated`.",
    "MatchEntry": "Which flows a rule is for: a flow must meet every key that is written.",
}

KEYS: Mapping[str, Mapping[str, str]] = {
    "PlacementEntry": {
        "near": "The application's own `core`; its `smt` sibling; another core under the same last "
        "level cache (`llc`) or of its NUMA `node`. Where it has none: docs/placements.md.",
        "avoid": "With `llc` and `node`: `smt`, never the sibling of the application's core.",
        "cpus": "One of these CPUs, whatever the application runs on.",
        "dedicated": "One of these CPUs, which serve no other flows.",
        "keep_off": "With `dedicated`: take these CPUs out of the cpuset of the cgroup that the "
        "application has for itself. What must be so: docs/placements.md.",
    },
    "PolicyFile": {
        "version": "Of the format of this file.",
        "about": "What this policy is for, in your words.",
        "daemon": "Settings of the daemon itself; in one file at most.",
        "interfaces": "Rules for interfaces. After the last file's stands: match every one, armed "
        "false.",
        "flows": "Rules for flows. Before the first file's stands `control`, which leaves ports 22 "
        "and 179 alone, after the last file's `rest`; a rule of that name replaces it.",
    },
    "DaemonEntry": {
        "observer": "How sockets are watched: `bpf`; `sock_diag`, by polling; or `auto`, bpf where "
        "the kernel allows it.",
        "on_stop": "When atfnd is stopped, `keep` its filters and settings, so that traffic goes "
        "on as it was and the next start takes them over; or `restore` what was before it.",
        "table": "The Flow-to-Core table.",
        "settle": "How often flows may move.",
        "shares": "The most of one user and of one control group.",
        "web": "A page that shows what atfnd does; none, if left out.",
    },
    "SharesEntry": {
        "user": "Of one user: the real uid of the thread that uses a socket.",
        "cgroup": "Of one control group, whoever its users are: the same keys.",
    },
    "ShareEntry": {
        "filters": "Percent of the filters of an interface that may be ours.",
        "queues": "Percent of the queues of an interface that may follow its threads.",
        "moves": "Percent of `settle.moves`, on each interface; 16 at once.",
        "decisions": "Events that are decided on in a second; 64 at once. The others wait, and of "
        "each socket only the last one counts.",
    },
    "WebEntry": {
        "port": "TCP, of 127.0.0.1 and ::1.",
    },
    "TableEntry": {
        "max": "Flows followed at once. One more is turned away and delivered by RSS.",
    },
    "SettleEntry": {
        "hold_down": "Least time between two moves of one flow.",
        "moves": "Moves of flows and queues a second on one interface, on average; 16 at once.",
    },
    "InterfaceEntry": {
        "match": "Which interfaces this rule is for.",
        "armed": "Whether anything is written there. If not, it is shown what would be.",
        "rules": "Our share of its filters.",
    },
    "InterfaceMatchEntry": {
        "name": "Globs on the interface's name.",
    },
    "RulesEntry": {
        "max": "At most this many filters of ours; else as many as there are.",
        "reserve": "Filters left free for others.",
    },
    "FlowEntry": {
        "name": "Unique among all files. Shown as the flow's `policy`.",
        "match": "Which flows this rule is for.",
        "placement": "Where a flow's packets are to arrive: `leave` it to RSS, near its "
        "application, or `auto`: on its core, or off it where that was measured to pay.",
        "order": "How it may be moved: `strict`, only where that cannot reorder its packets; "
        "`bounded`, else in a gap of its traffic, verified afterwards; `immediate`, at once.",
        "owner": "What migrates as one, and may own a queue that follows it: the `thread` that "
        "uses the socket, its `process` or its `cgroup`.",
        "t_delete": "An entry that is idle for this long goes, and its filter with it; sooner as "
        "the table fills.",
        "dwell": "Use on another core must last this long before the flow follows.",
        "replaces_built_in": "Needed in a rule named `control` that does not leave ports 22 and "
        "179 (ssh, BGP) alone, as the built-in one does: that it stands in its place is meant.",
    },
    "MatchEntry": {
        "protocol": "The transport.",
        "ports": "Local or remote port: one rule covers a service and its clients.",
        "local": "The address on this machine. One that is not bound is in no network.",
        "remote": "The other end's address. One that is not connected is in no network.",
        "direction": "Which end opened the connection: the other one, and it was `accepted` here, "
        "or this one. UDP has none, and matches no rule that asks.",
        "interface": "The NIC's name, as in `--nic`.",
        "process": "The name of the thread that uses the socket, 15 bytes at most (comm).",
        "command": "Its process's arguments, joined by spaces; of long ones the first 4096 bytes.",
        "user": "Its process's effective user: a name that this machine knows, or a uid.",
        "cgroup": "The control group of its process, as a path below /sys/fs/cgroup.",
        "unit": "A systemd unit that its process is in: service, scope or slice, at any depth.",
        "min_bytes": "It has carried at least this much, both ways; UDP too, but not with the "
        "sock_diag observer.",
        "min_age": "It is at least this old, since it was established or first seen.",
        "min_rate": "It was this fast between two looks, which are 2 to 20 seconds apart; that it "
        "was once is enough. Below, it falls under a later rule and is looked at again.",
    },
}
