# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon as the API sees it: what it shows, and which orders it takes."""

from __future__ import annotations

from functools import partial

from atfnd.daemon.found_sockets import FoundSockets
from atfnd.daemon.handshakes import BirthReader
from atfnd.daemon.in_force import InForce
from atfnd.daemon.measuring import Measuring
from atfnd.daemon.operator import OperatorCommands
from atfnd.daemon.pairing import Pairing
from atfnd.daemon.reload import PolicyReload
from atfnd.daemon.remembering import Remembering
from atfnd.daemon.reporter import Reporter
from atfnd.daemon.sockets import SocketReader
from atfnd.daemon.surveying import Surveying
from atfnd.daemon.wanted_reports import WantedReports
from atfnd.model import Policy
from atfnd.policy.match.matching import Matching

__all__ = ["Served"]


class Served:
    """A `serve.Source` that passes each question to the part that knows the answer."""

    def __init__(
        self,
        reporter: Reporter,
        remembering: Remembering,
        operator: OperatorCommands,
        reload: PolicyReload,
        reports: WantedReports,
        sockets: SocketReader,
        found: FoundSockets,
        births: BirthReader,
        matching: Matching,
        surveying: Surveying,
        pairing: Pairing,
        in_force: InForce,
        measuring: Measuring,
    ) -> None:
        self._sockets, self._in_force = sockets, in_force
        self.status, self.history = reporter.status, remembering.history
        self.counts = reporter.counts
        self.sockets = found.found
        self.flows, self.names, self.nics = reporter.flows, reporter.names, reporter.nics
        self.topology, self.cpu_time = reporter.topology, reporter.cpu_time
        self.events, self.later_than = reporter.events, reporter.later_than
        self.rss_queue, self.remarks = reporter.rss_queue, reporter.remarks
        self.plan, self.doctor, self.gain = reporter.plan, reporter.doctor, surveying.gain
        self.port_remarks, self.left_by = births.remarks, matching.left_by
        self.arm, self.disarm = operator.arm, operator.disarm
        self.pause, self.resume, self.restore = operator.pause, operator.resume, operator.restore
        self.reload, self.recording = reload.reload, reports.recording
        self.measure = measuring.measure
        self.pairs, self.latest_pairs = pairing.pairs, pairing.latest
        self.want_pairs = partial(pairing.want, "a reader")

    @property
    def audited_ns(self) -> int:
        return self._sockets.audited_ns

    @property
    def policy(self) -> Policy:
        return self._in_force.policy
