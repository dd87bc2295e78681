# SPDX-License-Identifier: GPL-2.0-or-later
# Builds the Debian package from what a release's archive has in it. The layer keeps what apt has installed.
apt-get update -q
apt-get install -qy make
rm -rf /src
mkdir /src
tar -x -C /src -f /trial/source.tar
make -C /src deb
rm -f /trial/*.deb
cp /src/build/deb/atfnd_*.deb /trial/
