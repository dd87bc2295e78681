# SPDX-License-Identifier: GPL-2.0-or-later
"""`make install` as an operator runs it, on this machine's root under a layer that is forgotten."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
LAYERED = """
set -e
mount -t tmpfs tmpfs "$0"
mkdir "$0/upper" "$0/work" "$0/root"
mount -t overlay -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" overlay "$0/root"
for each in proc dev sys; do mount --rbind /$each "$0/root/$each"; done
mkdir -p "$0/root/run/atfnd"
mount -t tmpfs -o mode=755 tmpfs "$0/root/run/atfnd"
exec chroot "$0/root" bash -ec 'cd "$0"; eval "$1"' "$1" "$2"
"""
STORY = """
make -s install
cd /
test -x /usr/local/sbin/atfnd
test -s /usr/local/lib/atfnd/atfnd/serve/page/index.html
cmp /usr/local/share/doc/atfnd/docs/service.md "$OLDPWD/docs/service.md"
cmp /usr/local/share/doc/atfnd/monitoring/atfnd.rules.yaml "$OLDPWD/monitoring/atfnd.rules.yaml"
getent group atfnd
atfnd check
atfnctl status || test $? = 3
systemd-analyze verify /usr/local/lib/systemd/system/atfnd.service
man -w atfnd atfnctl atfnd.yaml | xargs readlink -f
echo version: 1 >>/etc/atfnd/policies.d/mine.yaml
echo '# mine' >>/etc/atfnd/atfnd.yaml
make -s -C "$OLDPWD" install
tail -n 1 /etc/atfnd/atfnd.yaml
make -s -C "$OLDPWD" uninstall
! find /usr/local -newer "$OLDPWD/build/constraints" -name '*atfn*' | grep .
find /etc/atfnd -name mine.yaml
"""


@pytest.mark.timeout(300)
def test_installed_by_hand(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")} | PATH
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", LAYERED, tmp_path, ROOT, STORY],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("atfnd:x:")
    assert said[1] == "policy OK: /etc/atfnd/atfnd.yaml"
    pages = [line.replace("/local/man/", "/local/share/man/") for line in said]  # a link, on Debian
    assert [line for line in pages if line.startswith("/usr/local/share/man/")] == [
        f"/usr/local/share/man/man{page.rpartition('.')[2]}/{page}"
        for page in ("atfnd.8", "atfnctl.1", "atfnd.yaml.5")
    ]
    undone = said.index("# mine") + 1
    assert "nothing to restore" in said[undone:]
    assert said[-1] == "/etc/atfnd/policies.d/mine.yaml"
    assert not Path("/usr/local/sbin/atfnd").exists()
