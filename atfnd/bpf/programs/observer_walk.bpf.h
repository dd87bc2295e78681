/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The walks over sockets that user space starts: one row a socket, and what it marked written back.
 */
#ifndef ATFND_OBSERVER_WALK_BPF_H
#define ATFND_OBSERVER_WALK_BPF_H

#include "observer_record.bpf.h"

static struct socket_state *mark(struct sock *sk, struct socket_state *state)
{
	struct socket_state fresh = FRESH;
	__u64 cookie = bpf_get_socket_cookie(sk);
	__u32 *cpu = bpf_map_lookup_elem(&marked, &cookie);

	if (!cpu)
		return state;
	fresh.born_ns = bpf_ktime_get_ns();
	if (!state)
		state = bpf_sk_storage_get(&sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	if (state) {
		state->reported_cpu = *cpu;
		state->due_cpu = elsewhere ? OBSERVER_NOWHERE : *cpu; /* nobody has said where */
		state->reported_ns = state->came_ns = fresh.born_ns;
		state->window_ns = 0;
	}
	return state;
}

static __always_inline int row(struct bpf_iter_meta *meta, struct sock *sk,
			       struct socket_state *state)
{
	struct observer_record record = {};

	describe(&record, sk);
	record.kind = OBSERVER_SOCKET;
	record.at_ns = bpf_ktime_get_ns();
	record.app_cpu = OBSERVER_NO_CPU;
	if (state) {
		record.bytes = state->bytes;
		record.app_cpu = state->reported_cpu;
		record.tid = state->tid ?: state->reader;
		record.flags |= state->reported_cpu == OBSERVER_NO_CPU ? 0 : OBSERVER_REPORTED;
	}
	bpf_seq_write(meta->seq, &record, sizeof(record));
	return 0;
}

SEC("iter/tcp")
int each_tcp(struct bpf_iter__tcp *ctx)
{
	struct sock_common *common = ctx->sk_common;
	struct tcp_sock *tcp;
	struct sock *sk;

	if (!common || !(RECEIVING_STATES >> common->skc_state & 1))
		return 0;
	tcp = bpf_skc_to_tcp_sock(common);
	if (!tcp)
		return 0;
	sk = (struct sock *)tcp;
	return row(ctx->meta, sk, mark(sk, bpf_sk_storage_get(&sockets, sk, 0, 0)));
}

SEC("iter/udp")
int each_udp(struct bpf_iter__udp *ctx)
{
	struct sock *sk = (struct sock *)ctx->udp_sk;

	if (!sk || !sk->__sk_common.skc_num)
		return 0;
	return row(ctx->meta, sk, mark(sk, bpf_sk_storage_get(&sockets, sk, 0, 0)));
}

/* Visits only sockets that hold our state, whatever their namespace. */
SEC("iter/bpf_sk_storage_map")
int each_reported(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	struct socket_state *state = ctx->value;
	struct sock *sk = ctx->sk;

	if (!sk || !state || state->reported_cpu == OBSERVER_NO_CPU)
		return 0;
	return row(ctx->meta, sk, mark(sk, state));
}

#endif
