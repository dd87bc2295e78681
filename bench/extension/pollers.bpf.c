// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Where the time of NAPI threads goes: polls that find packets, polls that find none, and what is
 * between a poll and sleep.
 *
 * napi:napi_poll fires after a poll and says how many packets it handled (__napi_poll(),
 * net/core/dev.c). A poll began when the thread got the CPU (sched:sched_switch) or when the poll
 * before it ended: what the thread does before a poll counts as part of it. A CPU's backlog has no
 * NAPI id, and is none of a thread's polls.
 */
#include "kernel_types.h"
#include "pollers.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

struct poller {
	struct poller_totals totals;
	__u64 since_ns; /* it runs since then, and no poll has ended since; 0: it does not run */
	__u64 off_since_ns; /* 0: not known */
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, POLLERS);
	__type(key, __u32); /* pid of the thread */
	__type(value, struct poller);
} threads SEC(".maps");

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

char _license[] SEC("license") = "GPL";
