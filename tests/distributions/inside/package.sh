# SPDX-License-Identifier: GPL-2.0-or-later
# Installs the package on a bare system, uses it, and purges it. Nothing with its name is left.
apt-get update -q
apt-get install -qy /trial/atfnd_*.deb
test "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$EXPECTED_PYTHON"
test -s /usr/share/doc/atfnd/copyright
getent group atfnd
. /trial/use.sh
apt-get remove -qy atfnd
test ! -e /usr/lib/atfnd
test -e /etc/atfnd/atfnd.yaml
apt-get purge -qy atfnd
! find / -xdev -name '*atfnd*' -not -path '/var/log/*' | grep .
