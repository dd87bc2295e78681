#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-or-later
# /init of the guest's initramfs: the host's root, read-only, below a tmpfs. Then session.sh.
PATH=/bin
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
while read -r module; do insmod "/modules/$module"; done </modules/order

share() { mount -t 9p -o "trans=virtio,version=9p2000.L,msize=262144,$3" "$1" "$2"; }

mkdir -p /host /overlay /root
share root /host ro,cache=loose
mount -t tmpfs -o size=75% tmpfs /overlay
mkdir /overlay/upper /overlay/work
mount -t overlay -o lowerdir=/host,upperdir=/overlay/upper,workdir=/overlay/work overlay /root
for kept in proc sys dev; do mount --move /$kept /root/$kept; done
mount -t tmpfs -o mode=755 tmpfs /root/run
mkdir /root/run/guest
share run /root/run/guest rw
exec switch_root /root /bin/bash /run/guest/session.sh
