// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How long the CPUs wait for the spinlocks of one namespace's TCP sockets, and where TCP processes
 * what it receives: in the softirq that brought it, or later, in the thread that owned the socket.
 *
 * lock:contention_begin and contention_end (include/trace/events/lock.h) enclose a wait in the slow
 * path of a queued spinlock (kernel/locking/qspinlock.c), with the flag SPIN alone. They name the
 * lock by its address only. So each TCP socket's lock is noted by its address when the socket is
 * first used (tcp:tcp_probe sees every segment of an established connection), and forgotten when
 * the socket is destroyed. A thread that waits for a spinlock cannot be preempted, and an interrupt
 * that waits meanwhile ends its wait first: the waits of a CPU are a stack, of four contexts at most.
 *
 * A paravirtual kernel (dmesg: "PV spinlocks enabled") reports every wait. Another one does not
 * report the first waiter of a lock, who spins on its pending bit.
 */
#include "kernel_types.h"
#include "waits.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define CONTEXTS 4    /* task, softirq, hardirq, NMI: MAX_NODES of kernel/locking/qspinlock.h */
#define LCB_F_SPIN 1U /* include/trace/events/lock.h; with others: a rwlock or a mutex */
#define MSG_PEEK 2    /* include/linux/socket.h: the data stay where they are */
#define MSG_ERRQUEUE 0x2000
#define IPPROTO_TCP 6

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct spinlock {
	struct {
	} rlock;
};

struct sock___locked {
	struct {
		struct spinlock slock;
		int owned;
	} sk_lock;
};

#pragma clang attribute pop

struct wait {
	__u64 lock;
	__u64 since_ns;
	__u64 socket; /* it is one's lock */
};

struct waits_of_cpu {
	__u64 depth;
	struct wait stack[CONTEXTS];
};

const volatile __u32 netns; /* inode number of the network namespace */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 65536);
	__type(key, __u64); /* address of a socket's spinlock */
	__type(value, __u32);
} locks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waits_of_cpu);
} waiting SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct waits_totals);
} totals SEC(".maps");

static struct waits_totals *this_cpu_totals(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&totals, &zero);
}

static __u64 lock_of(struct sock *sk)
{
	struct sock___locked *locked = (void *)sk;

	return (__u64)&locked->sk_lock.slock;
}

/* Whether the socket is one of the namespace's TCP sockets; then its lock is known from now on. */
static bool known(struct sock *sk, struct waits_totals *count)
{
	__u64 lock = lock_of(sk);
	__u32 one = 1;

	if (sk->sk_protocol != IPPROTO_TCP || sk->__sk_common.skc_net.net->ns.inum != netns)
		return false;
	if (!bpf_map_lookup_elem(&locks, &lock) &&
	    bpf_map_update_elem(&locks, &lock, &one, BPF_ANY))
		count->untracked++;
	return true;
}

/* In tcp_rcv_established(), after the socket was locked to process the segment. The
 * softirq does so only while no thread owns the socket (tcp_v4_rcv()). */
SEC("tp_btf/tcp_probe")
int BPF_PROG(on_segment, struct sock *sk)
{
	struct sock___locked *locked = (void *)sk;
	struct waits_totals *count = this_cpu_totals();

	if (!count || !known(sk, count))
		return 0;
	if (BPF_CORE_READ(locked, sk_lock.owned))
		count->backlog_skbs++;
	else
		count->softirq_skbs++;
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_recv, struct sock *sk, int length, int flags)
{
	struct waits_totals *count = this_cpu_totals();

	if (!count || !known(sk, count) || length <= 0 || flags & (MSG_PEEK | MSG_ERRQUEUE))
		return 0;
	if (sk->__sk_common.skc_incoming_cpu == (int)bpf_get_smp_processor_id())
		__sync_fetch_and_add(&count->local_bytes, length);
	else
		__sync_fetch_and_add(&count->remote_bytes, length);
	return 0;
}

SEC("tp_btf/tcp_destroy_sock")
int BPF_PROG(on_destroy, struct sock *sk)
{
	__u64 lock = lock_of(sk);

	bpf_map_delete_elem(&locks, &lock);
	return 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(on_begin, void *lock, unsigned int flags)
{
	struct waits_of_cpu *here;
	struct waits_totals *count = this_cpu_totals();
	__u64 address = (__u64)lock;
	__u32 zero = 0;

	here = bpf_map_lookup_elem(&waiting, &zero);
	if (flags != LCB_F_SPIN || !here || !count)
		return 0;
	if (here->depth >= CONTEXTS) {
		count->unfinished += CONTEXTS;
		here->depth = 0;
	}

	struct wait *wait = &here->stack[here->depth & (CONTEXTS - 1)];

	wait->lock = address;
	wait->socket = bpf_map_lookup_elem(&locks, &address) != NULL;
	wait->since_ns = bpf_ktime_get_ns();
	here->depth++;
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(on_end, void *lock)
{
	__u64 now_ns = bpf_ktime_get_ns();
	struct waits_of_cpu *here;
	struct waits_totals *count = this_cpu_totals();
	__u32 zero = 0;

	here = bpf_map_lookup_elem(&waiting, &zero);
	if (!here || !count)
		return 0;
	for (int above = 1; above <= CONTEXTS; above++) {
		__u64 at = here->depth - above;

		if (at >= CONTEXTS)
			break;

		struct wait *wait = &here->stack[at];

		if (wait->lock != (__u64)lock)
			continue;
		count->unfinished += above - 1;
		here->depth = at;
		if (wait->socket) {
			count->socket_waits++;
			count->socket_ns += now_ns - wait->since_ns;
		} else {
			count->other_waits++;
			count->other_ns += now_ns - wait->since_ns;
		}
		break;
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
