/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Filling the record that goes up: addresses as a receiver's NIC sees them on the wire.
 */
#ifndef ATFND_OBSERVER_RECORD_BPF_H
#define ATFND_OBSERVER_RECORD_BPF_H

#include "observer.h"
#include "observer_state.bpf.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>

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

static __always_inline void describe(struct observer_record *record, struct sock *sk)
{
	struct sock_common *common = &sk->__sk_common;

	record->cookie = bpf_get_socket_cookie(sk);
	record->netns = common->skc_net.net->ns.inum;
	record->rx_cpu = common->skc_incoming_cpu;
	record->napi_id = sk->sk_napi_id;
	record->local_port = common->skc_num;
	record->remote_port = bpf_ntohs(common->skc_dport);
	record->protocol = sk->sk_protocol;
	record->family = 4;
	if (common->skc_family == AF_INET6) {
		bpf_probe_read_kernel(record->local, 16, &common->skc_v6_rcv_saddr);
		bpf_probe_read_kernel(record->remote, 16, &common->skc_v6_daddr);
		if (!is_mapped(record->local) && !is_mapped(record->remote)) {
			record->family = 6;
			if (is_any(record->local) && is_any(record->remote) &&
			    !BPF_CORE_READ_BITFIELD(common, skc_ipv6only))
				record->flags |= OBSERVER_DUAL_STACK;
			return;
		}
		__builtin_memset(record->local, 0, 16);
		__builtin_memset(record->remote, 0, 16);
	}
	*(__u32 *)record->local = common->skc_rcv_saddr;
	*(__u32 *)record->remote = common->skc_daddr;
}

static __always_inline struct observer_record *reserve(__u32 kind)
{
	struct observer_record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&lost, 1);
		return NULL;
	}
	__builtin_memset(record, 0, sizeof(*record));
	record->kind = kind;
	record->at_ns = bpf_ktime_get_ns();
	return record;
}

#endif
