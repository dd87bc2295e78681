#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-or-later
# selftests.sh [TEST...]: the Linux kernel's own driver tests, tools/testing/selftests/drivers/net/,
# in the guest on simnic. KERNEL=6.12 or newest, which it is without. Results: README.md. Run it with the checkout as working directory, after
# `make setup`. It keeps the kernel's tests, and the tools they want newer than the host has them,
# in the cache: nothing is installed.
set -e
LINUX=linux-source-7.2 # Debian trixie-backports; the tests of 7.2 run on both kernels of the guest
TESTS=(hw/ntuple.py hw/rss_ctx.py queues.py stats.py hw/irq.py ring_reconfig.py hw/rss_api.py
	hw/rss_drv.py hw/rss_input_xfrm.py napi_threaded.py napi_id.py ping.py)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/atfnd/selftests
tree=$cache/linux
self=$(realpath "$0")

fetch() { # -> $cache, whole or not at all
	local scratch=$cache.$$
	trap 'rm -rf $scratch' EXIT
	mkdir -p "$scratch"/{apt/lists/partial,apt/archives/partial,tools,linux}
	cd "$scratch"
	for suite in bookworm trixie-backports sid; do
		echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
	done >apt/sources.list
	printf '%s\n' "Dir::Etc \"$PWD/apt\";" "Dir::State::Lists \"$PWD/apt/lists\";" \
		"Dir::Cache \"$PWD/apt\";" 'APT::Sandbox::User "root";' >apt/conf
	# what this machine says about how to reach its mirrors, as tests/guest/fetch.py
	apt-config dump --no-empty Acquire | grep -E '::(https?::|Retries|ForceIPv|Check-)' >>apt/conf || true
	export APT_CONFIG=$PWD/apt/conf
	apt-get update -q
	apt-get download -q $LINUX/trixie-backports ethtool/sid socat/bookworm libwrap0/bookworm \
		iputils-ping/bookworm
	for package in ethtool socat libwrap0 iputils-ping; do
		dpkg-deb -x $package*.deb tools
	done
	dpkg-deb --fsys-tarfile $LINUX*.deb | tar x -O --wildcards '*.tar.xz' |
		tar xJ -C linux --strip-components=1 --wildcards '*/tools/testing/selftests/net/*' \
			'*/tools/testing/selftests/drivers/net/*' '*/tools/testing/selftests/kselftest*' \
			'*/tools/net/ynl/*' '*/Documentation/netlink/*'
	cd linux/tools/testing/selftests/net/lib
	for program in *.bpf.c; do
		clang -O2 -g -target bpf -mcpu=v3 -I/usr/include/x86_64-linux-gnu -c $program -o ${program%c}o
	done
	gcc -O2 -I../.. -o ../../drivers/net/napi_id_helper ../../drivers/net/napi_id_helper.c
	rm -rf "$scratch"/apt "$scratch"/*.deb
	cd "$scratch/.."
	mv "$scratch" "$cache"
	trap - EXIT
}

inside() { # the guest: environment of drivers/net/README.rst, then each test
	export PATH=$cache/tools/usr/sbin:$cache/tools/usr/bin:$cache/tools/bin:$PATH
	export LD_LIBRARY_PATH=$cache/tools/lib/x86_64-linux-gnu:$cache/tools/usr/lib/x86_64-linux-gnu
	export NETIF=sim0 LOCAL_V4=10.9.0.1 REMOTE_V4=10.9.0.2 LOCAL_V6=fd09::1 REMOTE_V6=fd09::2
	export REMOTE_TYPE=netns REMOTE_ARGS=peer
	# addresses outlive ifdown; a result is not to be lost with the guest's /tmp
	sysctl -qw net.ipv6.conf.default.keep_addr_on_down=1 net.ipv6.conf.all.keep_addr_on_down=1
	bash "$(dirname "$self")/../pair.sh" max_queues=64 queues=8 table=256
	cd "$tree/tools/testing/selftests/drivers/net"
	for name in "${@:-${TESTS[@]}}"; do
		echo "== $name"
		(cd "$(dirname "$name")" && timeout 900 python3 "$(basename "$name")" 2>&1) || true
		ip link set sim0 up
	done
	ip netns del peer
	rmmod simnic
	echo "== kernel log"
	dmesg | grep -E 'WARNING|BUG|Oops|simnic' || true
}

if [ -n "$ATFND_GUEST" ]; then
	inside "$@"
else
	[ -d "$cache" ] || (fetch) >&2
	exec .venv/bin/python -m tests.guest --kernel "${KERNEL:-newest}" --timeout 7200 -- \
		env PATH="$PWD/.venv/bin:$PATH" bash "$self" "$@"
fi
