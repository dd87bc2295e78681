/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The two ends of a socket, as a receiver's NIC sees their addresses on the wire.
 */
#ifndef ATFND_ENDS_BPF_H
#define ATFND_ENDS_BPF_H

#include "kernel_types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define AF_INET 2
#define AF_INET6 10

static bool is_mapped(const __u8 address[16])
{
	const __u32 *word = (const __u32 *)address;

	return !word[0] && !word[1] && word[2] == bpf_htonl(0xffff);
}

static bool is_any(const __u8 address[16])
{
	const __u32 *word = (const __u32 *)address;

	return !word[0] && !word[1] && !word[2] && !word[3];
}

/* Fills both addresses (zero before) and returns the family of the packets, 4 or 6: an IPv4-mapped
 * socket is 4. `both`: it is bound to any address and not connected, and receives IPv4 as well. */
static __always_inline __u8 read_ends(const struct sock_common *common, __u8 *local, __u8 *remote,
				      bool *both)
{
	*both = false;
	if (common->skc_family == AF_INET6) {
		bpf_probe_read_kernel(local, 16, &common->skc_v6_rcv_saddr);
		bpf_probe_read_kernel(remote, 16, &common->skc_v6_daddr);
		if (!is_mapped(local) && !is_mapped(remote)) {
			*both = is_any(local) && is_any(remote) &&
				!BPF_CORE_READ_BITFIELD(common, skc_ipv6only);
			return 6;
		}
		__builtin_memset(local, 0, 16);
		__builtin_memset(remote, 0, 16);
	}
	*(__u32 *)local = common->skc_rcv_saddr;
	*(__u32 *)remote = common->skc_daddr;
	return 4;
}

#endif
