/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Read locality: of the bytes that applications read, how many were processed on the CPU that read
 * them? sk_incoming_cpu is written where protocol processing is done, after RPS and RFS
 * (tcp_v4_rcv, tcp_v6_rcv; __udp_queue_rcv_skb of connected sockets only).
 */
#ifndef ATFND_OBSERVER_READ_BPF_H
#define ATFND_OBSERVER_READ_BPF_H

#include "observer_verdict.bpf.h"

#define MSG_PEEK 2 /* include/linux/socket.h: the data stay where they are */
#define MSG_ERRQUEUE 0x2000

/* The NAPI that a socket receives through; looked up again when it changes, or the set that is
 * watched. */
static __always_inline struct watched_napi *napi_of(struct sock *sk, struct socket_state *state)
{
	struct watched_napi none = { OBSERVER_NICS, OBSERVER_NO_CPU }, *napi;
	__u32 napi_id = sk->sk_napi_id;

	if (state->napi_id != napi_id || state->watching != watching) {
		napi = bpf_map_lookup_elem(&napis, &napi_id);
		state->napi = napi ? *napi : none;
		state->napi_id = napi_id;
		state->watching = watching;
	}
	return &state->napi;
}

/* One more read of a survey. Only this thread on this CPU writes to its entry. */
static __noinline void count_surveyed(struct sock *sk, struct socket_state *state, int length,
				      int rx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	struct survey_key key = {
		.tid = task->pid,
		.nic = state->napi.nic,
		.read_cpu = bpf_get_smp_processor_id(),
		.rx_cpu = rx,
		.left = state->generation == generation && state->verdict.min_bytes == CLAUSE_NEVER,
	};
	struct survey_count *count = bpf_map_lookup_elem(&survey, &key), fresh = {};

	if (!count) {
		fresh.pid = task->tgid;
		bpf_probe_read_kernel_str(fresh.comm, sizeof(fresh.comm), task->group_leader->comm);
		bpf_map_update_elem(&survey, &key, &fresh, BPF_NOEXIST);
		count = bpf_map_lookup_elem(&survey, &key);
	}
	if (!count) {
		__sync_fetch_and_add(&not_surveyed, length);
		return;
	}
	count->bytes += length;
	count->calls++;
	count->allowed = task->nr_cpus_allowed;
	if (state->unread) {
		count->accepted++;
		count->port = sk->__sk_common.skc_num;
	}
}

/* An atomic add to a counter of this CPU: a reader that is preempted in a plain one would write an
 * old sum over a newer one. */
static __always_inline void count_read(struct sock *sk, struct socket_state *state, int length,
				       int flags)
{
	__u32 nic = napi_of(sk, state)->nic;
	struct read_counters *counters = bpf_map_lookup_elem(&reads, &nic);
	int rx = sk->__sk_common.skc_incoming_cpu;

	if (!counters || flags & (MSG_PEEK | MSG_ERRQUEUE))
		return;
	/* What an unconnected UDP socket has there is SO_INCOMING_CPU, if anything. */
	if (sk->sk_protocol == IPPROTO_UDP && !sk->__sk_common.skc_dport)
		rx = -1;
	if (surveying)
		count_surveyed(sk, state, length, rx);
	if (rx < 0)
		__sync_fetch_and_add(&counters->unseen, length);
	else if (rx == (int)bpf_get_smp_processor_id())
		__sync_fetch_and_add(&counters->local, length);
	else
		__sync_fetch_and_add(&counters->remote, length);
}

#endif
