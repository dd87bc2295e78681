# SPDX-License-Identifier: GPL-2.0-or-later
# Installs the wheel as a user does: on a bare system that has Python and venv, nothing else of ours.
apt-get update -q
apt-get install -qy python3-venv
test "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$EXPECTED_PYTHON"
python3 -m venv /opt/atfnd
/opt/atfnd/bin/pip install -q /trial/dist/atfnd-*.whl
PATH=/opt/atfnd/bin:$PATH
. /trial/use.sh
/opt/atfnd/bin/pip uninstall -qy atfnd
! find /opt/atfnd -name '*atfn*' -not -path /opt/atfnd | grep .
