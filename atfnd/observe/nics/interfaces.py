# SPDX-License-Identifier: GPL-2.0-or-later
"""Which interfaces are wanted, and those of them that are here: at the start, and late arrivals.

A wanted name without wildcards must be here at the start; a pattern takes every interface with a
device behind it that matches, whenever it comes. Reads rtnetlink and /sys/class/net/*/device.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase

from atfnd.errors import OperatorError
from atfnd.kernel.interface import physical
from atfnd.kernel.netlink.rtnl import link, link_changes, links
from atfnd.nic import Nic
from atfnd.nic.driver import lab_is_there, open_nic
from atfnd.observe.nics.watch import NicWatch

__all__ = ["Interfaces"]

_WILD = "*?["


class Interfaces:
    """The operator's choice. `watch` makes the watch of an opened NIC."""

    def __init__(self, wanted: Sequence[str], watch: Callable[[Nic], NicWatch]) -> None:
        self._wanted = tuple(dict.fromkeys(wanted))
        self._watch = watch
        self._refused: dict[str, str] = {}  # by name: why it is not watched, as reported
        self.links = link_changes(None)
        self.refused: dict[str, str] = {}  # what a pattern took at the start, and why it was left

    def start(self) -> list[NicWatch]:
        """Open the wanted interfaces that are here. OperatorError for a name that is not here,
        before any pattern is tried; what was opened is closed again. An interface that matches a
        pattern may have gone, or be one that cannot be watched: it is `refused`."""
        opened: list[NicWatch] = []
        try:
            for name in self._wanted:
                if not _is_pattern(name):
                    opened.append(self.open(name))
            for name in self.missing({watch.facts.name for watch in opened}):
                try:
                    opened.append(self.open(name))
                except OperatorError as refusal:
                    self.refused[name] = refusal.message
        except (OperatorError, OSError) as refusal:
            for watch in opened:
                watch.close()
            if isinstance(refusal, OperatorError):
                raise
            what = f"the interfaces cannot be listed: {refusal.strerror}"
            raise OperatorError(what, exit_code=1) from refusal
        return opened

    def missing(self, watched: Collection[str]) -> list[str]:
        """Interfaces and labs that are here and wanted, and not `watched`, in name order."""
        here = {each.name for each in links().values() if self._wants(each.name)}
        here.update(name for name in self._wanted if lab_is_there(name))
        return sorted(here.difference(watched))

    def may_have_come(self, changed: Collection[int] | None, watched: Collection[str]) -> bool:
        """Whether one of the links that changed (None: any) is wanted and not `watched`, or may be
        one that was refused and has gone."""
        if changed is None:
            return True
        for ifindex in changed:
            try:
                name = link(None, ifindex).name
            except OSError:
                if self._refused:
                    return True
                continue
            if name not in watched and self._wants(name):
                return True
        return False

    def come(
        self, watched: Collection[str], refused: Callable[[str, str], None]
    ) -> Iterator[NicWatch]:
        """Open what is here, wanted and not `watched`. `refused` is called with the name of one
        that cannot be watched, and why: once, until it goes or the reason changes."""
        missing = self.missing(watched)
        self._refused = {name: why for name, why in self._refused.items() if name in missing}
        for name in missing:
            try:
                watch = self.open(name)
            except OperatorError as refusal:
                if self._refused.get(name) != refusal.message:
                    refused(name, refusal.message)
                self._refused[name] = refusal.message
                continue
            self._refused.pop(name, None)
            yield watch

    def open(self, name: str) -> NicWatch:
        """OperatorError: it cannot be watched, or is gone again."""
        if not name.isprintable():  # a name is any bytes; ours go into JSON, metrics and the log
            raise OperatorError(f"interface {name!a} is not watched: its name is not readable text")
        try:
            nic = open_nic(name)
            try:
                return self._watch(nic)
            except BaseException:
                nic.close()
                raise
        except OSError as error:
            raise OperatorError(f"{name}: {error.strerror}", exit_code=1) from error

    def _wants(self, name: str) -> bool:
        return any(
            fnmatchcase(name, wanted) and physical(name) if _is_pattern(wanted) else name == wanted
            for wanted in self._wanted
        )

    def close(self) -> None:
        self.links.close()


def _is_pattern(name: str) -> bool:
    return any(sign in name for sign in _WILD)
