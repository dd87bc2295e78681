# SPDX-License-Identifier: GPL-2.0-or-later
# pair.sh [PARAMETER=VALUE...] in the guest: load simnic and put its two ports opposite each other.
# sim0 (10.9.0.1, fd09::1) stays here, sim1 (10.9.0.2, fd09::2) goes to the namespace `peer`.
set -e
insmod "$(dirname "$0")/../../build/guest/$(uname -r)/simnic.ko" "$@"
ip netns add peer
ip link set sim1 netns peer
ip addr add 10.9.0.1/24 dev sim0
ip addr add fd09::1/64 dev sim0 nodad
ip link set sim0 up
ip -n peer addr add 10.9.0.2/24 dev sim1
ip -n peer addr add fd09::2/64 dev sim1 nodad
ip -n peer link set lo up
ip -n peer link set sim1 up
