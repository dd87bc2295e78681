# SPDX-License-Identifier: GPL-2.0-or-later
"""Reads the policy: one main file, then `policies.d/*.yaml` beside it in name order, as one Policy.

Rules of all files stand in the order read, between the built-in first and last ones
(`builtin.yaml`). Names of flow rules are unique, and `daemon:` and `host:` are given in one file at
most, so that no setting silently overrides another. Several files may have the same rule `rest`.
Nothing is written; a bad file is a PolicyError.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from atfnd.model import (
    ANY_CPU,
    Direction,
    FlowRule,
    ForwardingRule,
    InterfaceRule,
    Migrant,
    Mode,
    PairPlacement,
    Placement,
    Policy,
    Share,
    SoftirqBudget,
)
from atfnd.policy.file.decode import decode
from atfnd.policy.file.document import Document
from atfnd.policy.file.doubts import doubts
from atfnd.policy.file.host import Host, HostInterface
from atfnd.policy.file.placement import placement_of, wrong_cpus
from atfnd.policy.file.problem import PolicyError, Problem, printable
from atfnd.policy.file.reception import reception_of
from atfnd.policy.file.schema import (
    DaemonEntry,
    FlowEntry,
    ForwardingEntry,
    InterfaceEntry,
    PolicyFile,
    ShareEntry,
)
from atfnd.policy.match.covers import deciding
from atfnd.trust import doubt, read_regular

__all__ = ["DEFAULT_CONFIG", "built_in", "check", "load"]

MOST_BYTES = 1 << 20  # of one file
DEFAULT_CONFIG = Path("/etc/atfnd/atfnd.yaml")
PROTECTS = "control"  # for remote access: stands first, may be replaced
REST = "rest"  # stands last, may be replaced
BUILT_IN_RULES = PROTECTS, REST
BUILT_IN = Path(__file__).with_name("builtin.yaml")

Content = tuple[Document, PolicyFile]


def load(config: Path | None = None, *, trusting: bool = True) -> Policy:
    """The policy of `config` and its `policies.d`; without `config`, of DEFAULT_CONFIG if it is
    there. Raises PolicyError with every problem of every file. Unless `trusting`, a file that
    another user than root and ours may change is a problem."""
    return _merge(_contents(config, trusting=trusting))


def built_in() -> Policy:
    """The policy that applies without any file. Reads `builtin.yaml`."""
    return _merge(())


def _contents(
    config: Path | None,
    files: Sequence[Path] = (),
    host: Host | None = None,
    *,
    trusting: bool = True,
) -> list[Content]:
    """Of `files`, if there are any, otherwise of what `config` names. `host` is the machine that
    the policy is for; None: this one."""
    problems: list[Problem] = []
    contents = []
    for path in files or _files(config, problems):
        try:
            text, suspect = _read(path)
        except OSError as error:
            problems.append(_unreadable(path, error))
            continue
        if suspect is not None and not trusting:
            problems.append(suspect)
            continue
        document = Document(str(path), text)
        content, wrong = decode(document, host)
        problems += wrong
        if content is not None:
            contents.append((document, content))
    problems += _conflicts(contents)
    cpus = os.sysconf("SC_NPROCESSORS_CONF") if host is None else host.cpus
    problems += wrong_cpus(contents, cpus, _called(host))
    if problems:
        raise PolicyError(problems)
    return contents


def check(
    config: Path | None = None,
    files: Sequence[Path] = (),
    host: Host | None = None,
    interfaces: Sequence[HostInterface] = (),
    units: Sequence[str] = (),
) -> None:
    """`atfnd check`: print a summary of the policy, or raise PolicyError. With `files`, it is the
    policy of these alone; with `host`, it is for that machine, which the first line names, else for
    this one, which has these `interfaces` and `units`; none: they are not known. Warnings are on
    stderr: a rule that is probably not meant, and a file of this machine's policy that others may
    change; it is read nevertheless."""
    if host is not None:
        cpus = f"{len(host.online)} of {host.cpus} CPUs online"
        others = f"{len(host.interfaces)} interfaces, {len(host.users)} users"
        print(f"for {_called(host)}: {cpus}, {others}", flush=True)
    contents = _contents(config, files, host)
    policy = _merge(contents)
    protects = next(rule for rule in _flow_rules(*_built_in()) if rule.name == PROTECTS)
    if host is not None:
        interfaces, units = host.interfaces, host.units
    for note in doubts(policy, contents, protects, interfaces, units, _called(host)):
        print(note, file=sys.stderr)
    for path in policy.files if host is None else ():
        suspect = _read(Path(path))[1]
        if suspect is not None:
            print(f"atfnd run will refuse it: {suspect}", file=sys.stderr)
    armed = [str(rule) for rule in deciding(policy.interfaces) if rule.armed]
    print(f"policy OK: {', '.join(policy.files) or 'built-in, no files'}")
    print(f"armed: {', '.join(armed) or 'no interface (observe only)'}")
    if asked := policy.softirq_budget.values:
        values = ", ".join(f"{name} {value}" for name, value in asked.items())
        print(f"host: {values} ({policy.softirq_budget.source})")
    for rule in policy.flows:
        order = "" if rule.placement is Placement.LEAVE else f", order {rule.order.value}"
        print(f"{rule.name}: {rule.placement}{order} ({rule.source})")
    for each in policy.forwarding:
        order = "" if each.placement is PairPlacement.LEAVE else f", order {each.order.value}"
        print(f"forwarding {each.name}: {each.placement.value}{order} ({each.source})")


def _called(host: Host | None) -> str:
    return "this machine" if host is None else printable(host.name)


def _files(config: Path | None, problems: list[Problem]) -> list[Path]:
    main = config or DEFAULT_CONFIG
    there = config is not None or os.path.lexists(main)
    directory = main.parent / "policies.d"
    try:
        names = sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        names = []
    except OSError as error:
        problems.append(_unreadable(directory, error))
        names = []
    for name in names:
        if name.endswith(".yml"):
            hint = f"rename it {name.removesuffix('.yml')}.yaml"
            problems.append(_whole_file(directory / name, "only *.yaml is read here", hint))
    parts = [directory / name for name in names if name.endswith(".yaml")]
    return [main, *parts] if there else parts


def _read(path: Path) -> tuple[bytes, Problem | None]:
    """A file's text, and which other users may change it. OSError: it cannot be read, is no regular
    file (which may have no end), or is over MOST_BYTES."""
    text, found = read_regular(path, MOST_BYTES)
    suspect = doubt(path, found, os.geteuid())
    if suspect is None:
        return text, None
    return text, _whole_file(path, f"not to be trusted: {suspect.why}", suspect.mend)


def _unreadable(path: Path, error: OSError) -> Problem:
    return _whole_file(path, f"cannot be read: {error.strerror}")


def _whole_file(path: Path, message: str, hint: str | None = None) -> Problem:
    return Problem(str(path), None, None, 0, None, message, hint)


def _conflicts(contents: Sequence[Content]) -> list[Problem]:
    """What only one file may say, said in two; and a file that is named twice."""
    problems: list[Problem] = []
    rules: dict[str, tuple[FlowRule, str]] = {}
    forwarders: dict[str, str] = {}
    once: dict[str, str] = {}
    for document, content in contents:
        for i, rule in enumerate(content.flows):
            said, known = _flow_rule(rule, ""), rules.get(rule.name)
            if known is None:
                rules[rule.name] = said, f"{document.file}:{document.line(('flows', i))}"
            elif rule.name != REST or said != known[0]:
                message = f"a second flow rule named `{rule.name}`"
                hint = f"the first is at {known[1]}"
                if rule.name == REST:
                    hint += " and says something else"
                problems.append(document.problem(("flows", i, "name"), message, hint))
            if rule.name == PROTECTS and not (rule.replaces_built_in or _protects(rule)):
                message = f"`{PROTECTS}` is the built-in rule that leaves ssh and BGP alone"
                hint = "leave their ports alone in yours, rename it, or replaces_built_in: true"
                problems.append(document.problem(("flows", i, "name"), message, hint))
            if rule.replaces_built_in and rule.name not in BUILT_IN_RULES:
                message = f"there is no built-in rule `{rule.name}`"
                hint = f"there are {' and '.join(BUILT_IN_RULES)}"
                problems.append(document.problem(("flows", i, "replaces_built_in"), message, hint))
        for i, forwarding in enumerate(content.forwarding):
            if forwarding.name in forwarders:
                message = f"a second forwarding rule named `{forwarding.name}`"
                hint = f"the first is at {forwarders[forwarding.name]}"
                problems.append(document.problem(("forwarding", i, "name"), message, hint))
            at = f"{document.file}:{document.line(('forwarding', i))}"
            forwarders.setdefault(forwarding.name, at)
        for key in ("daemon", "host"):
            if getattr(content, key) is None:
                continue
            if key in once:
                hint = f"they are in {once[key]}: keep them in one file"
                problems.append(document.problem((key,), f"a second `{key}`", hint, key=True))
            once.setdefault(key, document.file)
    return problems


def _built_in() -> Content:
    document = Document("built-in", BUILT_IN.read_bytes())
    content, wrong = decode(document)
    if content is None:
        raise PolicyError(wrong)
    return document, content


def _protects(rule: FlowEntry) -> bool:
    """The rule leaves alone all that the built-in rule leaves alone."""
    ours = next(each for each in _built_in()[1].flows if each.name == PROTECTS).match.ports or ()
    theirs = rule.match.ports or ()
    return (
        rule.placement is None
        and rule.match.model_fields_set == {"ports"}
        and all(any(low <= first and last <= high for low, high in theirs) for first, last in ours)
    )


def _merge(contents: Sequence[Content]) -> Policy:
    document, built_in = _built_in()
    first, last = _flow_rules(document, built_in)
    flows = [rule for each in contents for rule in _flow_rules(*each)]
    first = next((rule for rule in flows if rule.name == PROTECTS), first)
    last = next((rule for rule in flows if rule.name == REST), last)
    flows = [rule for rule in flows if rule.name not in BUILT_IN_RULES]
    interfaces = [rule for each in contents for rule in _interface_rules(*each)]
    daemon = next((c.daemon for _, c in contents if c.daemon is not None), DaemonEntry())
    return Policy(
        interfaces=(*interfaces, *_interface_rules(document, built_in)),
        flows=(first, *flows, last),
        observer=daemon.observer,
        table_max=daemon.table.max,
        hold_down_ns=daemon.settle.hold_down,
        files=tuple(document.file for document, _ in contents),
        moves_per_s=daemon.settle.moves,
        cpu_share=daemon.cpu,
        on_stop=daemon.on_stop,
        user_share=_share(daemon.shares.user),
        cgroup_share=_share(daemon.shares.cgroup),
        web_port=None if daemon.web is None else daemon.web.port,
        forwarding=tuple(rule for each in contents for rule in _forwarding_rules(*each)),
        softirq_budget=_softirq_budget(contents),
    )


def _softirq_budget(contents: Iterable[Content]) -> SoftirqBudget:
    for document, content in contents:
        if content.host is not None and (budget := content.host.softirq_budget) is not None:
            time_us = None if budget.time is None else budget.time // 1000
            source = f"{document.file}:{document.line(('host', 'softirq_budget'))}"
            return SoftirqBudget(budget.packets, time_us, source)
    return SoftirqBudget()


def _share(entry: ShareEntry) -> Share:
    return Share(entry.filters, entry.queues, entry.moves, entry.decisions)


def _flow_rules(document: Document, content: PolicyFile) -> list[FlowRule]:
    return [
        _flow_rule(rule, f"{document.file}:{document.line(('flows', i))}")
        for i, rule in enumerate(content.flows)
    ]


def _flow_rule(rule: FlowEntry, source: str) -> FlowRule:
    match = rule.match
    return FlowRule(
        name=rule.name,
        source=source,
        protocols=frozenset(match.protocol) if match.protocol else None,
        ports=match.ports,
        local=match.local,
        remote=match.remote,
        processes=match.process,
        commands=match.command,
        users=frozenset(match.user) if match.user else None,
        cgroups=match.cgroup,
        units=match.unit,
        interfaces=match.interface,
        direction=None if match.direction is None else Direction(match.direction),
        min_rate_bit_s=match.min_rate,
        min_bytes=match.min_bytes,
        min_age_ns=match.min_age,
        placement=placement_of(rule.placement),
        order=Mode(rule.order),
        owner=Migrant(rule.owner),
        dwell_ns=rule.dwell,
        t_delete_ns=rule.t_delete,
        full_core=rule.full_core,
        filters_max=None if rule.filters is None else rule.filters.max,
        reception=None if rule.reception is None else reception_of(rule.reception),
    )


def _forwarding_rules(document: Document, content: PolicyFile) -> list[ForwardingRule]:
    return [
        _forwarding_rule(rule, f"{document.file}:{document.line(('forwarding', i))}")
        for i, rule in enumerate(content.forwarding)
    ]


def _forwarding_rule(rule: ForwardingEntry, source: str) -> ForwardingRule:
    place = rule.placement
    return ForwardingRule(
        name=rule.name,
        source=source,
        ingress=rule.match.ingress,
        egress=rule.match.egress,
        one_way=rule.one_way,
        placement=PairPlacement(f"mode {place.mode}" if place.pair is None else place.pair),
        order=Mode(rule.order),
    )


def _interface_rules(document: Document, content: PolicyFile) -> list[InterfaceRule]:
    return [
        _interface_rule(rule, f"{document.file}:{document.line(('interfaces', i))}")
        for i, rule in enumerate(content.interfaces)
    ]


def _interface_rule(rule: InterfaceEntry, source: str) -> InterfaceRule:
    return InterfaceRule(
        name=_joined(rule.match.name) or "*",
        source=source,
        armed=rule.armed,
        filters_max=rule.filters.max,
        filters_reserve=rule.filters.reserve,
        napi_threads=rule.napi_threads,
        guard=rule.guard,
        unowned=rule.unowned,
        rss_hash=rule.rss_hash,
        serve_on=rule.serve_on or ANY_CPU,
        driver=_joined(rule.match.driver),
        reception=reception_of(rule.reception),
    )


def _joined(several: Iterable[Iterable[str]] | None) -> str | None:
    """Globs as one text."""
    return None if several is None else "|".join(glob for globs in several for glob in globs)
