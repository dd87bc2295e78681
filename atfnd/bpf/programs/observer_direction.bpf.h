/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Which end opened a connection: noted when it is established, while user space wants to know.
 *
 * In a storage of its own: an answered connect has no NAPI id yet (tcp_finish_connect marks it after
 * the state is set), so it is noted whatever NIC it is of, and `sockets` is for watched ones alone.
 */
#ifndef ATFND_OBSERVER_DIRECTION_BPF_H
#define ATFND_OBSERVER_DIRECTION_BPF_H

#include "observer_state.bpf.h"

enum { TCP_SYN_SENT = 2, TCP_SYN_RECV = 3 }; /* include/net/tcp_states.h */

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u8); /* enum observer_flag */
} directions SEC(".maps");

bool want_direction = false;

static __always_inline void note_direction(struct sock *sk, int old_state, int new_state)
{
	__u8 direction = old_state == TCP_SYN_SENT ? OBSERVER_CONNECTED : OBSERVER_ACCEPTED;

	if (!want_direction || new_state != TCP_ESTABLISHED)
		return;
	if (old_state == TCP_SYN_SENT || old_state == TCP_SYN_RECV)
		bpf_sk_storage_get(&directions, sk, &direction, BPF_SK_STORAGE_GET_F_CREATE);
}

static __always_inline void add_direction(struct observer_record *record, struct sock *sk)
{
	__u8 *direction = bpf_sk_storage_get(&directions, sk, 0, 0);

	if (direction)
		record->flags |= *direction;
}

#endif
