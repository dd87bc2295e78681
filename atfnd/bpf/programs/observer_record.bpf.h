/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Filling the record that goes up.
 */
#ifndef ATFND_OBSERVER_RECORD_BPF_H
#define ATFND_OBSERVER_RECORD_BPF_H

#include "ends.bpf.h"
#include "observer.h"
#include "observer_state.bpf.h"

static __always_inline void describe(struct observer_record *record, struct sock *sk)
{
	struct sock_common *common = &sk->__sk_common;
	bool both;

	record->cookie = bpf_get_socket_cookie(sk);
	record->netns = common->skc_net.net->ns.inum;
	record->rx_cpu = common->skc_incoming_cpu;
	record->napi_id = sk->sk_napi_id;
	record->local_port = common->skc_num;
	record->remote_port = bpf_ntohs(common->skc_dport);
	record->protocol = sk->sk_protocol;
	record->family = read_ends(common, record->local, record->remote, &both);
	if (both)
		record->flags |= OBSERVER_DUAL_STACK;
	if (sk->sk_protocol == IPPROTO_UDP && !common->skc_dport && sk->sk_reuseport_cb &&
	    sk->sk_reuseport_cb->num_socks > 1)
		record->flags |= OBSERVER_GROUP;
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
