#!/bin/busybox sh
# SPDX-License-Identifier: GPL-2.0-or-later
# /init of the guest's initramfs: the host's root, read-only, below a tmpfs. Then session.sh, as PID 1
# or, with guest.init=systemd, as a service of the host's systemd.
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
grep -q guest.init=systemd /root/proc/cmdline || exec switch_root /root /bin/bash /run/guest/session.sh

# What the host has enabled is not wanted here, nor are logins; its packages may start services. tmpfiles.d would
# empty /tmp.
rm -rf /root/etc/systemd/system/*.wants /root/usr/sbin/policy-rc.d
ln -s /dev/null /root/etc/tmpfiles.d/tmp.conf
echo 0123456789abcdef0123456789abcdef >/root/etc/machine-id
units=/root/run/systemd/system
mkdir -p $units/multi-user.target.wants
for unit in getty.target systemd-logind.service systemd-hwdb-update.service systemd-tmpfiles-clean.timer \
    systemd-binfmt.service proc-sys-fs-binfmt_misc.automount; do
    ln -s /dev/null $units/$unit
done
ln -s ../guest.service $units/multi-user.target.wants/guest.service
cat >$units/guest.service <<-unit
	[Unit]
	Description=The guest's command
	[Service]
	ExecStart=/bin/bash /run/guest/session.sh
unit
exec switch_root /root /lib/systemd/systemd
