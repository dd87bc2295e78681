# SPDX-License-Identifier: GPL-2.0-or-later
"""The Debian package under a real systemd, from its installation to its purge; a NIC with filters,
and an application whose packets stay where they belong whatever the service goes through.

The tests are steps of one story, in their order. `debian` builds the packages on the host.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from atfnd.model import Filter, Match
from tests.applications import Application
from tests.bed import Bed, a_bed
from tests.daemons import policy
from tests.guest.debian import NEWER, PACKAGE
from tests.guest.simlab import NAME, a_simlab, sh
from tests.serve.paged import ask, listens
from tests.wait import until

GUEST = ["--init", "systemd"]
UNIT = "atfnd.service"
DROP_IN = Path("/run/systemd/system/atfnd.service.d/test.conf")
ETC = Path("/etc/atfnd")
OURS = ETC / "policies.d/10-sim.yaml"
ARMED = f"interfaces: [{{ match: {{ name: {NAME} }}, armed: true }}]\n"
FLOWS = re.sub(r"^(version|daemon).*\n", "", policy(), flags=re.MULTILINE)
WRITTEN = {"/run/atfnd", "/var/lib/atfnd", "/proc/irq/default_smp_affinity"}
WRITTEN |= {"/proc/sys/net/core/rps_sock_flow_entries", f"/sys/class/net/{NAME}/threaded"}
UNTOUCHED = {"/etc/atfnd", "/usr", "/var/lib", "/proc/sys/kernel/hostname", "/sys/kernel/mm"}
UNTOUCHED |= {"/sys/fs/cgroup"}
LINK = Path("/etc/systemd/system/multi-user.target.wants/atfnd.service")


def show(name: str) -> str:
    return sh("systemctl", "show", "-P", name, UNIT).strip()


def journal() -> str:
    return sh("journalctl", "-o", "cat", "-u", UNIT)


def systemctl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemctl", *words, UNIT], capture_output=True, text=True)


def dpkg(*words: object) -> None:
    """Without triggers: man-db's index of every page takes long here."""
    sh("dpkg", "--no-triggers", *words)


def drop_in(text: str) -> None:
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(text)
    sh("systemctl", "daemon-reload")


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with (
        a_simlab(queues=4, table=64) as lab,
        a_bed(lab, tmp_path_factory.mktemp("unused"), "bpf") as made,
    ):
        made.daemon.socket = Path("/run/atfnd/atfnd.sock")
        yield made


@pytest.fixture(scope="module")
def app(bed: Bed) -> Application:
    return bed.apps.tcp()


def restarted(times: int) -> bool:
    return show("ActiveState") == "active" and int(show("NRestarts")) >= times


def rule_of(bed: Bed, app: Application) -> Filter:
    """Its rule as it stands in the NIC; there is no other."""
    (rule,) = bed.lab.nic.filters()
    assert rule.match == Match.of(app.key)
    return rule._replace(hits=None)


def test_installing_changes_nothing_on_the_machine() -> None:
    without_lists = (
        "cd /var/lib && tar -c --exclude='dpkg/info/*.*' dpkg >/tmp/dpkg.tar"
        " && mount -t tmpfs none dpkg && tar -xf /tmp/dpkg.tar"
    )  # of each package's files: dpkg reads them all each time, by 9p
    sh("sh", "-c", without_lists)
    dpkg("-i", PACKAGE)
    assert (show("ActiveState"), show("UnitFileState")) == ("inactive", "disabled")
    assert sh("getent", "group", "atfnd").startswith("atfnd:")
    assert sh("atfnd", "check").splitlines()[1] == "armed: no interface (observe only)"


def test_enabled_and_started_it_is_ready_when_it_has_looked(bed: Bed) -> None:
    OURS.write_text(f"version: 1\n{ARMED}{FLOWS}")
    sh("systemctl", "enable", "--now", UNIT)
    assert LINK.is_symlink()
    status = bed.daemon.status()
    assert (status["observer"], status["armed"]) == ("bpf", [NAME])
    assert show("StatusText").startswith(f"1 of 1 NICs armed: {NAME}; ")


def test_it_steers_within_its_bounds(bed: Bed, app: Application) -> None:
    bed.steered(app)
    assert bed.daemon.events("refused", "handshakes", "notify", "manual") == []
    pid = show("MainPID")
    status = dict(
        line.split(":\t", 1) for line in Path("/proc", pid, "status").read_text().splitlines()
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert status["CapEff"] == status["CapBnd"]
    for path in WRITTEN | UNTOUCHED:
        done = subprocess.run(["nsenter", "-t", pid, "-m", "test", "-w", path], check=False)
        assert (done.returncode == 0) == (path in WRITTEN), path
    said = sh("stat", "-c", "%U:%G %a", "/run/atfnd/atfnd.sock")
    assert said == "root:atfnd 660\n"


def test_reload_waits_and_tells_a_mistake(bed: Bed, app: Application) -> None:
    """With it a page is served, within its bounds, and not any more with the last."""
    port, web = 8650, ETC / "policies.d/20-web.yaml"
    assert not listens(port)
    web.write_text(f"version: 1\ndaemon: {{ web: {{ port: {port} }} }}\n")
    OURS.write_text(OURS.read_text().replace("everything", "renamed"))
    assert systemctl("reload").returncode == 0, journal()
    names = [row["rule"] for row in bed.daemon.get("/v1/policy")["flows"]]
    assert "renamed" in names
    until(lambda: listens(port) and listens(port, "::1"), "the page is served")
    assert ask(port, "/").status == 200
    assert f'"pid": {show("MainPID")},' in ask(port, "/v1/status", address="::1").body
    web.unlink()
    OURS.write_text(OURS.read_text().replace("near: core", "near: cor"))
    assert systemctl("reload").returncode != 0
    assert show("ActiveState") == "active"
    assert f"{OURS}:" in show("StatusText")
    until(lambda: re.search(rf"^{OURS}:\d+:\d+: ", journal(), re.MULTILINE), "it is reported")
    OURS.write_text(OURS.read_text().replace("near: cor", "near: core"))
    assert systemctl("reload").returncode == 0
    assert "not reloaded" not in show("StatusText")
    until(lambda: not listens(port), "it is not served any more")
    bed.steered(app)


def test_a_loop_that_stands_still_is_ended_and_started_again(bed: Bed, app: Application) -> None:
    before, since = rule_of(bed, app), sh("date", "+%s").strip()
    drop_in("[Service]\nWatchdogSec=15\n")
    sh("systemctl", "restart", UNIT)
    os.kill(int(show("MainPID")), signal.SIGSTOP)
    until(lambda: restarted(1), "it is started again", 60)
    said = sh("journalctl", "-o", "cat", "--since", f"@{since}", "-u", UNIT)
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said
    assert "1 filters taken over" in bed.daemon.events("adopt")[-1]["what"]
    assert rule_of(bed, app) == before
    DROP_IN.unlink()


def test_stopped_it_leaves_its_rule_and_a_crasher_is_given_up(bed: Bed, app: Application) -> None:
    before = rule_of(bed, app)
    sh("systemctl", "stop", UNIT)
    assert (show("ActiveState"), show("Result")) == ("inactive", "success")
    assert rule_of(bed, app) == before
    drop_in("[Service]\nExecStart=\nExecStart=/bin/sh -c 'exit 1'\n")
    systemctl("reset-failed")
    assert systemctl("start").returncode != 0
    until(lambda: show("ActiveState") == "failed", "it is given up", 60)
    assert 1 < int(show("NRestarts")) <= 5
    DROP_IN.unlink()
    right = OURS.read_text()
    OURS.write_text(right.replace("near: core", "near: cor"))
    sh("systemctl", "daemon-reload")
    systemctl("reset-failed")
    assert systemctl("start").returncode != 0  # a mistake is not tried again
    assert (show("ActiveState"), show("NRestarts")) == ("failed", "0")
    assert show("ExecMainStatus") == "2"
    OURS.write_text(right)


def test_an_upgrade_keeps_rules_and_what_an_admin_wrote(bed: Bed, app: Application) -> None:
    before = rule_of(bed, app)
    sh("systemctl", "start", UNIT)
    pid, main = show("MainPID"), ETC / "atfnd.yaml"
    main.write_text(f"{main.read_text()}# ours\n")
    dpkg("-i", NEWER)
    assert show("ActiveState") == "active"
    assert show("MainPID") != pid
    assert main.read_text().endswith("# ours\n")
    assert (ETC / "policies/server.yaml").exists()
    bed.steered(app)
    assert rule_of(bed, app) == before


def test_removal_puts_all_back_and_a_purge_leaves_only_what_the_admin_made(bed: Bed) -> None:
    dpkg("-r", "atfnd")
    assert bed.lab.nic.filters() == []
    assert systemctl("is-active").stdout == "inactive\n"
    assert (ETC / "atfnd.yaml").exists()
    dpkg("-P", "atfnd")
    assert [path for path in ETC.rglob("*") if path.is_file()] == [OURS]
    gone = [LINK, Path("/run/atfnd"), Path("/var/lib/atfnd"), Path("/usr/lib/atfnd")]
    assert [path for path in gone if path.is_symlink() or path.exists()] == []
