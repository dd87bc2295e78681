// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Where the time of NAPI threads goes: polls that find packets, polls that find none, what is between
 * a poll and sleep, and waits for spinlocks.
 *
 * napi:napi_poll fires after a poll and says how many packets it handled (__napi_poll(),
 * net/core/dev.c). A poll began when the thread got the CPU (sched:sched_switch) or when the poll
 * before it ended: what the thread does before a poll counts as part of it. A CPU's backlog has no
 * NAPI id, and is none of a thread's polls.
 * lock:contention_begin and contention_end enclose a wait in the slow path of a queued spinlock. They
 * name the lock by its address; that of the producers of a veth's ring (drivers/net/veth.c) is known
 * once a thread has polled it.
 */
#include "kernel_types.h"
#include "pollers.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define LCB_F_SPIN 1U /* include/trace/events/lock.h; with others: a rwlock or a mutex */

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ptr_ring {
	struct {
	} producer_lock;
};

struct veth_rq {
	struct napi_struct xdp_napi;
	struct ptr_ring xdp_ring;
};

#pragma clang attribute pop

struct poller {
	struct poller_totals totals;
	__u64 since_ns; /* it runs since then, and no poll has ended since; 0: it does not run */
	__u64 off_since_ns; /* 0: not known */
	__u64 waits_since_ns;
	__u64 lock;  /* that it waits for; 0: for none */
	__u64 rings; /* it is the one of a ring */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLLERS);
	__type(key, __u32); /* pid of the thread */
	__type(value, struct poller);
} threads SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLLERS);
	__type(key, __u64); /* address of the producers' lock of a ring that a thread polls */
	__type(value, __u32);
} rings SEC(".maps");

/* Keeps the struct in our BTF, where the Python side reads its layout. */
const struct poller_totals *totals_layout __attribute__((unused));

static struct poller *of(__u32 pid)
{
	return bpf_map_lookup_elem(&threads, &pid);
}

static struct poller *this_thread(void)
{
	return of(bpf_get_current_pid_tgid());
}

/* Remember the lock of the ring of a veth's NAPI. */
static void note_ring(struct napi_struct *napi)
{
	struct veth_rq *rq = NULL;
	__u64 lock;
	__u32 one = 1;

	if (!bpf_core_type_exists(struct veth_rq))
		return;
	rq = (void *)napi - bpf_core_field_offset(rq->xdp_napi);
	lock = (__u64)&rq->xdp_ring.producer_lock;
	if (!bpf_map_lookup_elem(&rings, &lock))
		bpf_map_update_elem(&rings, &lock, &one, BPF_ANY);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempted, struct task_struct *prev, struct task_struct *next,
	     unsigned int state)
{
	struct poller *from = of(prev->pid), *to;

	if (from) {
		from->off_since_ns = bpf_ktime_get_ns();
		if (from->since_ns)
			from->totals.other_ns += from->off_since_ns - from->since_ns;
		from->since_ns = 0;
		from->totals.sleeps += state != 0 && !preempted;
	}
	to = of(next->pid);
	if (to) {
		to->since_ns = bpf_ktime_get_ns();
		if (to->off_since_ns)
			to->totals.off_ns += to->since_ns - to->off_since_ns;
	}
	return 0;
}

SEC("tp_btf/napi_poll")
int BPF_PROG(on_poll, struct napi_struct *napi, int work, int budget)
{
	struct poller *here = this_thread();
	__u64 now_ns, took_ns;

	if (!here || !here->since_ns || !napi->napi_id)
		return 0;
	now_ns = bpf_ktime_get_ns();
	took_ns = now_ns - here->since_ns;
	here->since_ns = now_ns;
	note_ring(napi);
	if (work > 0) {
		here->totals.polls++;
		here->totals.packets += work;
		here->totals.work_ns += took_ns;
	} else {
		here->totals.empty_polls++;
		here->totals.empty_ns += took_ns;
	}
	return 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(on_begin, void *lock, unsigned int flags)
{
	struct poller *here = this_thread();
	__u64 address = (__u64)lock;

	if (!here || flags != LCB_F_SPIN)
		return 0;
	here->lock = address;
	here->rings = bpf_map_lookup_elem(&rings, &address) != NULL;
	here->waits_since_ns = bpf_ktime_get_ns();
	return 0;
}

SEC("tp_btf/contention_end")
int BPF_PROG(on_end, void *lock)
{
	struct poller *here = this_thread();

	if (!here || here->lock != (__u64)lock)
		return 0;
	here->lock = 0;
	if (!here->rings)
		return 0;
	here->totals.ring_waits++;
	here->totals.ring_waited_ns += bpf_ktime_get_ns() - here->waits_since_ns;
	return 0;
}

char _license[] SEC("license") = "GPL";
