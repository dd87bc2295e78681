// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Flows that move from one receive queue to another: does any packet reach its socket through the old
 * queue after the first one through the new? And when has the old queue delivered all it held?
 *
 * Delivery is the socket's filter (sk_filter_trim_cap(), net/core/filter.c, from
 * udp_queue_rcv_one_skb() and tcp_filter()), where the root cgroup's ingress programs run: one packet
 * at a time, next to the socket's own queue or lock. Tracepoint net:netif_receive_skb is too early: a
 * poll passes its packets on in lists, all of a list go by there before the first one goes on
 * (__netif_receive_skb_list_core(), net/core/dev.c), and another CPU's may come in between. The queue
 * is skb->napi_id, which skb_mark_napi_id() sets in napi_gro_receive(). One word, first_b_ns, orders
 * what two CPUs deliver at once: B's first packet sets it once, each packet of A (and of RSS's
 * queue, where a rule is deleted and added) reads it. From here
 * to the socket's queue it is a fraction of a microsecond, in which two CPUs can still change places.
 *
 * A poll's end is tracepoint napi:napi_poll. Drained after X is the second end after X (the first
 * may have begun before) with work <= budget - 2 (budget - 1 also means "call me elsewhere": i40e,
 * mlx4) and nothing left in the NAPI's GRO lists, whatever gro_flush_timeout or busy polling say
 * (napi_complete_done(), busy_poll_stop()).
 */
#include "kernel_types.h"
#include "transit.h"
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define PASS 1
#define NAPI_SCHED 1UL /* include/linux/netdevice.h, NAPIF_STATE_SCHED */
#define TASK_INTERRUPTIBLE 1

struct transit_ring rings[TRANSIT_RINGS];
int sought_tid; /* of find_napi() */
__u32 sought_ring;
__u64 backlogs[TRANSIT_CPUS]; /* struct softnet_data *, by CPU; 0: not polled since we look */
__u64 lost;		      /* events that found the ring buffer full */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1); /* set when loaded */
	__type(key, __u64);	/* socket cookie */
	__type(value, struct transit_flow);
} flows SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} events SEC(".maps");

/* Keeps the struct in our BTF, where the Python side reads its layout. */
const struct transit_event *event_layout __attribute__((unused));

/* Through A, or through a ring between A and B. */
static void note_late(__u64 cookie, struct transit_flow *flow, __u32 napi_id, __u32 packets,
		      __u64 now)
{
	__u64 first_b_ns = *(volatile __u64 *)&flow->first_b_ns;
	struct transit_event *event;

	if (!first_b_ns)
		return;
	__sync_fetch_and_add(&flow->late_packets, packets);
	event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return;
	}
	*event = (struct transit_event){ now, first_b_ns, flow->move, cookie, napi_id, packets };
	bpf_ringbuf_submit(event, 0);
}

SEC("cgroup_skb/ingress")
int on_delivery(struct __sk_buff *skb)
{
	__u64 cookie = bpf_get_socket_cookie(skb), now;
	struct transit_flow *flow = bpf_map_lookup_elem(&flows, &cookie);
	__u32 packets = skb->gso_segs ?: 1, napi_id = skb->napi_id;

	if (!flow)
		return PASS;
	now = bpf_ktime_get_ns();
	if (napi_id == flow->napi_a) {
		flow->last_a_ns = now;
		__sync_fetch_and_add(&flow->a_packets, packets);
		note_late(cookie, flow, napi_id, packets, now);
	} else if (napi_id == flow->napi_b) {
		__sync_val_compare_and_swap(&flow->first_b_ns, 0, now);
		flow->last_b_ns = now;
		__sync_fetch_and_add(&flow->b_packets, packets);
	} else {
		flow->elsewhere_napi = napi_id;
		flow->last_elsewhere_ns = now;
		__sync_fetch_and_add(&flow->elsewhere_packets, packets);
		if (napi_id && napi_id == flow->napi_r)
			note_late(cookie, flow, napi_id, packets, now);
	}
	return PASS;
}

/* Before 6.15 the GRO lists were the NAPI's own (commit 388d31417ce0). */
struct napi_struct___before_gro_node {
	unsigned long gro_bitmask;
	int rx_count;
} __attribute__((preserve_access_index));

static bool gro_holds(const struct napi_struct *napi)
{
	const struct napi_struct___before_gro_node *old = (const void *)napi;

	if (bpf_core_field_exists(napi->gro))
		return BPF_CORE_READ(napi, gro.bitmask) || BPF_CORE_READ(napi, gro.rx_count);
	return BPF_CORE_READ(old, gro_bitmask) || BPF_CORE_READ(old, rx_count);
}

/* Newer kernels. */
struct hrtimer___is_queued {
	bool is_queued;
} __attribute__((preserve_access_index));

/* A timer will schedule the NAPI: until then its interrupt may be off, and what comes is not
 * announced (napi_complete_done(), napi_watchdog(), net/core/dev.c). While it fires it is not
 * queued any more, and the NAPI not scheduled yet; __run_hrtimer() sets `running` first
 * (kernel/time/hrtimer.c). To be asked before NAPI_STATE_SCHED. */
static bool timer_waits(const struct napi_struct *napi)
{
	const struct hrtimer *timer = (const void *)napi + bpf_core_field_offset(napi->timer);
	const struct hrtimer___is_queued *newer = (const void *)timer;

	if (bpf_core_field_exists(timer->state)) {
		if (BPF_CORE_READ(timer, state))
			return true;
	} else if (bpf_core_field_exists(newer->is_queued) && BPF_CORE_READ(newer, is_queued)) {
		return true;
	}
	barrier();
	return BPF_CORE_READ(timer, base, running) == timer;
}

/* How fast a queue is polled that is never empty: R_service of the paper's T_timer. */
static void note_service(struct transit_ring *ring, int work, int budget, __u64 now)
{
	if (ring->full) {
		ring->served_ns += now - ring->polled_ns;
		ring->served_packets += work;
	}
	if (ring->served_packets > TRANSIT_SERVED) {
		ring->served_ns /= 2;
		ring->served_packets /= 2;
	}
	ring->full = work >= budget;
}

/* One NAPI is polled by one CPU at a time (NAPI_STATE_SCHED): plain writes are exact. */
SEC("tp_btf/napi_poll")
int BPF_PROG(on_poll, struct napi_struct *napi, int work, int budget)
{
	__u32 napi_id = napi->napi_id, cpu = bpf_get_smp_processor_id();

	if (!napi_id && !napi->dev && cpu < TRANSIT_CPUS)
		backlogs[cpu] = (__u64)napi - bpf_core_field_offset(struct softnet_data, backlog);
	if (!napi_id)
		return 0;
	for (int i = 0; i < TRANSIT_RINGS; i++) {
		struct transit_ring *ring = &rings[i];
		struct transit_poll poll;
		__u64 after_ns, now;

		if (ring->napi_id != napi_id)
			continue;
		ring->napi = (__u64)napi;
		ring->polls++;
		after_ns = *(volatile __u64 *)&ring->after_ns;
		now = bpf_ktime_get_ns();
		note_service(ring, work, budget, now);
		*(volatile __u32 *)&ring->polled_cpu = cpu;
		*(volatile __u64 *)&ring->polled_ns = now;
		if (!after_ns || now <= after_ns || ring->drained_after == after_ns)
			return 0;
		poll = (struct transit_poll){ now, work, budget };
		if (ring->ended_after != after_ns) {
			ring->ended = poll;
			ring->ended_after = after_ns;
		} else if (work <= budget - 2 && !gro_holds(napi)) {
			ring->drained = poll;
			*(volatile __u64 *)&ring->drained_after = after_ns;
		}
		return 0;
	}
	return 0;
}

/* The NAPI of a ring's thread (kthread_data(), kernel/kthread.c; napi_kthread_create(),
 * net/core/dev.c), so that a queue can be asked whether it is idle before it was ever polled. */
SEC("iter/task")
int find_napi(struct bpf_iter__task *context)
{
	struct task_struct *task = context->task;
	const struct kthread *kthread;
	__u32 i = sought_ring;
	struct napi_struct *napi;

	if (!task || task->pid != sought_tid || i >= TRANSIT_RINGS)
		return 0;
	kthread = task->worker_private;
	napi = BPF_CORE_READ(kthread, data);
	if (BPF_CORE_READ(napi, napi_id) == rings[i].napi_id)
		rings[i].napi = (__u64)napi;
	return 0;
}

/* Is a queue idle now, which no event ever says? 1 or 0, asked by user space.
 *
 * Only a NAPI with a thread answers: it sleeps (napi_thread_wait()) after poll and completion, and
 * after the driver has looked at its ring again. Read in this order, a packet that was in the ring
 * before, and announced, has been delivered or has NAPI_STATE_SCHED set. Without the thread the bit
 * alone says less: veth clears it before that last look (veth_poll()). A NAPI that was freed gives
 * garbage, not its id. While a timer is to poll it, its sleep says nothing.
 */
SEC("syscall")
int is_idle(__u32 *index)
{
	struct napi_struct *napi;
	struct task_struct *thread;
	__u32 i = *index;

	if (i >= TRANSIT_RINGS)
		return 0;
	napi = (void *)rings[i].napi;
	if (!napi || BPF_CORE_READ(napi, napi_id) != rings[i].napi_id || timer_waits(napi))
		return 0;
	thread = BPF_CORE_READ(napi, thread);
	if (!thread || BPF_CORE_READ(thread, __state) != TASK_INTERRUPTIBLE)
		return 0;
	return !(BPF_CORE_READ(napi, state) & NAPI_SCHED) && !gro_holds(napi);
}

/* How many packets a CPU's backlog has been given, and how many of them it has delivered: a packet
 * counts in the tail once it is queued (enqueue_to_backlog(), net/core/dev.c), and in the head once
 * its protocols are done with it (process_backlog()). RFS itself moves a flow by this test
 * (get_rps_cpu()). 0: it is not known where it is, or the kernel has no RPS.
 */
SEC("syscall")
int read_backlog(struct transit_backlog *backlog)
{
	const struct softnet_data *data;
	__u32 cpu = backlog->cpu;

	if (cpu >= TRANSIT_CPUS || !backlogs[cpu])
		return 0;
	data = (const void *)backlogs[cpu];
	if (!bpf_core_field_exists(data->input_queue_head) ||
	    !bpf_core_field_exists(data->input_queue_tail))
		return 0;
	backlog->tail = BPF_CORE_READ(data, input_queue_tail);
	backlog->head = BPF_CORE_READ(data, input_queue_head);
	return 1;
}

char _license[] SEC("license") = "GPL";
