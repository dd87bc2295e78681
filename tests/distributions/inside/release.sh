# SPDX-License-Identifier: GPL-2.0-or-later
# Builds what a package index takes, from what a release's archive has in it. Each library in the wheel has its licence.
rm -rf /trial/dist
make -C /src dist
python3 -m zipfile -l /src/build/dist/atfnd-*.whl >/tmp/list
test "$(grep -c '\.libs/lib' /tmp/list)" = "$(grep -c 'licenses/bundled/lib' /tmp/list)"
cp -r /src/build/dist /trial/dist
