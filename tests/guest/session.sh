# SPDX-License-Identifier: GPL-2.0-or-later
# PID 1 of the guest after init.sh, or systemd's guest.service: runs /run/guest/command and leaves its exit code
# beside it.
# The host reads `started` (by the command's script), `stdout`, `stderr`, `exit` and `dmesg` there; see boot.py.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
guest=/run/guest
mkdir -p /run/netns
if [ $$ = 1 ]; then # systemd does all that itself
    mkdir -p /dev/pts /dev/shm /run/lock
    mount -t devpts devpts /dev/pts
    mount -t tmpfs tmpfs /dev/shm
    mount -t debugfs debugfs /sys/kernel/debug
    mount -t tracefs tracefs /sys/kernel/tracing
    mount -t bpf bpf /sys/fs/bpf
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    for number in 0 1 2; do ln -s /proc/self/fd/$number /dev/$(sed -n $((number + 1))p <<<$'stdin\nstdout\nstderr'); done
    ln -s /proc/self/fd /dev/fd
fi
ip link set lo up
# Only now: QEMU aborts (iotlb_to_section) when a CPU reads a device while another sizes BARs.
for cpu in /sys/devices/system/cpu/cpu[1-9]*/online; do echo 1 >$cpu; done

bash $guest/command </dev/null >$guest/stdout 2>$guest/stderr
code=$?
dmesg >$guest/dmesg
echo $code >$guest/exit
echo b >/proc/sysrq-trigger # QEMU's -no-reboot makes this the end, at once
