# SPDX-License-Identifier: GPL-2.0-or-later
# start.sh ROUNDS "CPU CPU"... in the counted guest: begin to count. Then each pair of CPUs hands a line to and fro,
# ROUNDS times; prints what `load pingpong` does. What is used in windows is copied to /dev/shm/counted. Counts
# BPF programs, too, if /run/guest/programs has their addresses (programs.py).
set -e
build=$(dirname "$0")/../../build/guest
there=/dev/shm/counted counts=/run/guest/counts rounds=$1
shift
grep -q tsc_early_khz=1000000 /proc/cmdline || { echo "not a counted guest" >&2; exit 1; }
clock=$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)
test "$clock" = tsc || { echo "the guest's clock is $clock, not tsc" >&2; exit 1; }
mkdir -p $there
cp "$build/counted/load" "$build/$(uname -r)/spinidle.ko" $there
grep -A1 -m1 ' t handle_softirqs$' /proc/kallsyms | cut -d' ' -f1 >/run/guest/ranges
[ ! -e /run/guest/programs ] || cat /run/guest/programs >>/run/guest/ranges
mv /run/guest/ranges /run/guest/go
until [ -s $counts ]; do $there/load mark; done
for pair; do $there/load pingpong $pair "$rounds" $there/spinidle.ko; done
