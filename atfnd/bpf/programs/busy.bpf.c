// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * How long each CPU was busy, to the nanosecond, whatever the kernel accounts by: ticks, or precise
 * times with CONFIG_IRQ_TIME_ACCOUNTING. A CPU is busy when its idle task does not run (tracepoint
 * sched:sched_switch, kernel/sched/core.c) or when a softirq has interrupted it
 * (irq:softirq_entry and softirq_exit, kernel/softirq.c; a softirq is not interrupted by another).
 * The hard interrupts of an idle CPU are left out: they only raise the softirq.
 */
#include "busy.h"
#include "kernel_types.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define NET_TX_SOFTIRQ 2 /* include/linux/interrupt.h */
#define NET_RX_SOFTIRQ 3

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct busy_time);
} times SEC(".maps");

static struct busy_time *this_cpu_time(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&times, &zero);
}

SEC("tp_btf/sched_switch")
int BPF_PROG(on_switch, bool preempt, struct task_struct *prev, struct task_struct *next)
{
	struct busy_time *time = this_cpu_time();
	__u64 now = bpf_ktime_get_ns();

	if (!time)
		return 0;
	if (time->idle_since_ns) {
		time->idle_ns += now - time->idle_since_ns;
		time->idle_since_ns = 0;
	}
	if (!next->pid)
		time->idle_since_ns = now;
	time->switches++;
	return 0;
}

SEC("tp_btf/softirq_entry")
int BPF_PROG(on_entry, unsigned int vec)
{
	struct busy_time *time = this_cpu_time();

	if (time)
		time->softirq_since_ns = bpf_ktime_get_ns();
	return 0;
}

/* A NAPI thread is asked for its time as a thread: what it runs must not count twice. */
static bool in_napi_thread(void)
{
	char comm[16];

	return !bpf_get_current_comm(comm, sizeof(comm)) && comm[0] == 'n' && comm[1] == 'a' &&
	       comm[2] == 'p' && comm[3] == 'i' && comm[4] == '/';
}

SEC("tp_btf/softirq_exit")
int BPF_PROG(on_exit, unsigned int vec)
{
	struct busy_time *time = this_cpu_time();
	__u64 took;

	if (!time || !time->softirq_since_ns)
		return 0;
	took = bpf_ktime_get_ns() - time->softirq_since_ns;
	time->softirq_since_ns = 0;
	if (!(__u32)bpf_get_current_pid_tgid())
		time->over_idle_ns += took;
	if ((vec == NET_RX_SOFTIRQ || vec == NET_TX_SOFTIRQ) && !in_napi_thread())
		time->network_ns += took;
	return 0;
}

char _license[] SEC("license") = "GPL";
