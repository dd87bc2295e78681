# SPDX-License-Identifier: GPL-2.0-or-later
# Runs the kit on a bare system that has Python and nothing else of ours, without a network: it reports. Then again with
# the network that there is, until SIGINT. Both leave nothing behind.
apt-get update -q
apt-get install -qy python3
test "$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = "$EXPECTED_PYTHON"
test "$(du -sb /trial/kit | cut -f 1)" -le $((60 << 20))
cd /root
there() {
  find / /tmp /run /trial/kit -xdev | sort
  grep -lsz '^PYTHONPATH=/trial/kit/python$' /proc/[0-9]*/environ || true
}
touch /tmp/before /tmp/after
there >/tmp/before

unshare --net /trial/kit/run --short
grep -q '<svg' report.html
mv report.html /trial/report.html
there >/tmp/after
diff /tmp/before /tmp/after

timeout --signal INT --preserve-status 60 /trial/kit/run || test $? = 130
test ! -e report.html
there >/tmp/after
diff /tmp/before /tmp/after
echo "nothing is left"
