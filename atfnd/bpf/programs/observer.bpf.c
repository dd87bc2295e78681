// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * Which core does the application use each socket on?
 *
 * The only evidence taken is a socket call in process context (sock_recv_length, sock_send_length):
 * the CPU of a transmitted packet is no evidence, softirq ACKs pollute it (Wu, DeMar, Crawford, IEEE
 * Comm. Letters 15(2), 2011). A record goes up only for a qualified socket that was used for `dwell`
 * on a CPU other than the one last reported, and for so long that a move pays; or whose packets still
 * arrive elsewhere after a report.
 * So records are O(migrations of flows that matter), never O(packets) or O(calls).
 */
#include "observer_direction.bpf.h"
#include "observer_read.bpf.h"
#include "observer_record.bpf.h"
#include "observer_stay.bpf.h"
#include "observer_verdict.bpf.h"
#include "observer_walk.bpf.h"
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define MAX_BACKOFF 6
#define READERS_NS 1000000000ull

/* It comes in through a NIC that user space watches. */
static __always_inline bool watched(struct sock *sk)
{
	__u32 napi_id = sk->sk_napi_id;

	return bpf_map_lookup_elem(&napis, &napi_id);
}

static bool steerable(struct sock *sk)
{
	__u16 family = sk->__sk_common.skc_family;
	__u16 protocol = sk->sk_protocol;

	if (family != AF_INET && family != AF_INET6)
		return false;
	if (protocol == IPPROTO_UDP)
		return sk->__sk_common.skc_num != 0;
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_SCTP)
		return false;
	return RECEIVING_STATES >> sk->__sk_common.skc_state & 1;
}

static struct socket_state *admit(struct sock *sk)
{
	struct socket_state fresh = FRESH;

	if (!steerable(sk))
		return NULL;
	fresh.born_ns = bpf_ktime_get_ns();
	fresh.tid = bpf_get_current_pid_tgid();
	return bpf_sk_storage_get(&sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
}

/* The state of a thread; NULL: it was not known, and has just come to this CPU. */
static __always_inline struct thread_state *known_thread(__u32 tid, __u32 cpu, __u64 since_ns)
{
	struct thread_state fresh = {}, *thread = bpf_map_lookup_elem(&threads, &tid);

	if (thread)
		return thread;
	arrive_all(&fresh, cpu, since_ns);
	fresh.at[OBSERVER_CPU].doublings = prices.doubt;
	bpf_map_update_elem(&threads, &tid, &fresh, BPF_NOEXIST);
	return NULL;
}

static __always_inline int report(struct sock *sk, struct socket_state *state, int rx, __u32 home,
				  bool paid)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct observer_record *record = reserve(OBSERVER_SEEN);
	struct thread_state *thread;
	__u64 began_ns;
	bool pinned = is_pinned();
	__u32 tid = pid_tgid;

	if (!record)
		return 0; /* nothing is marked as reported: the next call tries again */
	describe(record, sk);
	record->rx_cpu = rx;
	record->bytes = state->bytes;
	record->app_cpu = state->window_cpu;
	record->off_since_ns = state->window_ns;
	record->born_ns = state->born_ns;
	record->cgroup = bpf_get_current_cgroup_id();
	record->tid = tid;
	record->pid = pid_tgid >> 32;
	record->uid = bpf_get_current_uid_gid();
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	add_direction(record, sk);
	if (pinned)
		record->flags |= OBSERVER_PINNED;
	record->home = state->home = home;
	state->backoff = together(state->reported_cpu, state->window_cpu, home) &&
					 state->backoff < MAX_BACKOFF
				 ? state->backoff + 1
				 : 0;
	if (state->reported_cpu != state->window_cpu)
		state->came_ns = record->at_ns;
	state->due_cpu = elsewhere ? OBSERVER_NO_CPU : state->window_cpu;
	state->reported_cpu = state->window_cpu;
	state->reported_ns = record->at_ns;
	state->tid = tid;
	began_ns = state->window_ns;
	state->window_ns = 0;
	thread = known_thread(tid, state->reported_cpu, began_ns);
	if (thread && !pinned) {
		struct stay_move move = { record->at_ns, home, state->reported_cpu, rx, paid };

		moved(thread, &move);
	}
	thread = thread ?: bpf_map_lookup_elem(&threads, &tid);
	state->goes_along = pinned && !together(rx, state->reported_cpu, OBSERVER_CPU);
	if (thread) {
		thread->pinned_cpu = pinned ? state->reported_cpu : OBSERVER_NO_CPU;
		thread->nic = napi_of(sk, state)->nic;
	}
	bpf_ringbuf_submit(record, 0);
	return 0;
}

/* One report of a pinned thread is enough: user space takes along all flows of the same NIC that it
 * knows (steer.seen). It knows those that were reported as off target. If this one's packets do not
 * come, it is reported later. */
static __always_inline bool is_taken_along(struct sock *sk, struct socket_state *state, __u32 cpu)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *thread;

	if (elsewhere || !state->goes_along || state->tid != tid || state->reported_cpu == cpu ||
	    state->reported_cpu == OBSERVER_NO_CPU || !is_pinned())
		return false;
	thread = bpf_map_lookup_elem(&threads, &tid);
	return thread && thread->pinned_cpu == cpu && thread->nic == napi_of(sk, state)->nic;
}

/* When the stay on this CPU began. A thread that moved takes its sockets along: the sockets it was
 * reported with count from its arrival, so one that it calls seldom need not be called twice. This
 * does not hold for the sockets of another thread: it may use such a socket only once. */
static __always_inline __u64 stay_began(struct socket_state *state, __u32 cpu, __u32 home,
					__u64 now)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct thread_state *thread;

	if (state->tid != tid)
		return now;
	thread = bpf_map_lookup_elem(&threads, &tid);
	if (!thread || home >= OBSERVER_LEVELS || thread->at[home].part != part_of(cpu, home))
		return now;
	return thread->at[home].since_ns;
}

/* The CPU that the packets of a reported socket belong on: the one user space set, which knows the
 * policy; else the application's. An answer about another CPU of the application is no answer; one
 * to an earlier report holds until the last report is answered, so it is not kept. */
static __always_inline __u32 belongs(struct sock *sk, struct socket_state *state)
{
	struct due *said;
	__u64 cookie;

	if (elsewhere) {
		cookie = bpf_get_socket_cookie(sk);
		said = bpf_map_lookup_elem(&due, &cookie);
		if (said && said->at_ns >= state->reported_ns)
			state->due_cpu = said->cpu;
		else if (said && said->at_ns >= state->came_ns)
			return said->cpu;
	}
	return state->due_cpu == OBSERVER_NO_CPU ? state->reported_cpu : state->due_cpu;
}

/* Is a record of this call worth it, and which part of the machine is the home then? A thread that
 * may run on one CPU only stays; a flow that was never placed is placed once. */
__noinline __u32 judge_stay(const struct socket_state *state, __u32 cpu, int rx, __u32 length,
			    __u64 now)
{
	__u32 paid, home, before, tid = bpf_get_current_pid_tgid();
	struct thread_state *thread;
	bool first, stayed;

	if (!state)
		return UNPAID;
	first = state->reported_cpu == OBSERVER_NO_CPU;
	before = state->home;
	if (!prices.move_ns || is_pinned())
		return VERDICT(PLACE, OBSERVER_CPU);
	thread = known_thread(tid, cpu, now);
	if (!thread && first && prices.doubt >= WANDERS)
		thread = bpf_map_lookup_elem(&threads, &tid); /* it has no home yet */
	if (!thread)
		return first || (before == OBSERVER_CPU && state->reported_cpu == cpu)
			       ? VERDICT(PLACE, OBSERVER_CPU)
			       : VERDICT(UNPAID, OBSERVER_CPU);
	add_call(thread, cpu, rx, length, now);
	home = home_of(thread);
	paid = paid_level(thread, home, now);
	if (paid == OBSERVER_CPU || (paid < OBSERVER_LEVELS && !together(cpu, rx, paid)))
		return VERDICT(PAID, paid);
	if (!first && home > before)
		return VERDICT(HABIT, home);
	if (first)
		return VERDICT(home < OBSERVER_LEVELS ? PLACE : HABIT, home);
	/* It has stayed since it was reported: what was asked for then has not come about. */
	stayed = before < OBSERVER_LEVELS && together(state->reported_cpu, cpu, before) &&
		 thread->at[before].since_ns <= state->reported_ns;
	return VERDICT(stayed ? PLACE : UNPAID, before);
}

static __always_inline int off_target(struct sock *sk, struct socket_state *state, __u32 cpu,
				      int rx, int length)
{
	__u64 now = bpf_ktime_get_ns();
	__u32 judged = judge_stay(state, cpu, rx, length, now), home = judged & 0xff;
	enum verdict verdict = judged >> 8;
	bool there;

	if (!state->window_ns) {
		state->window_ns = stay_began(state, cpu, home, now);
		state->window_cpu = cpu;
		state->window_calls = 0;
		state->window_hits = 0;
	}
	there = together(cpu, state->window_cpu, home);
	state->window_calls++;
	state->window_hits += there;
	if (now - state->window_ns < dwell_ns)
		return 0;
	/* Dwell is over: one part must have had nine calls of ten, this one among them. */
	if (!there || state->window_hits * 10 < state->window_calls * 9) {
		state->window_ns = now;
		state->window_cpu = cpu;
		state->window_calls = 1;
		state->window_hits = 1;
		if (dwell_ns)
			return 0;
	}
	/* Where a thread wanders within a part, its flows are reported once: RFS may serve them. */
	if (state->reported_cpu == OBSERVER_NO_CPU && rx == (int)cpu && !elsewhere) {
		state->window_ns = 0; /* nothing to steer */
		return 0;
	}
	if (state->home == home && together(state->reported_cpu, cpu, home)) {
		bool arrives = rx < 0 || together(rx, belongs(sk, state), home);

		if (arrives || now - state->reported_ns < report_again_ns << state->backoff) {
			state->window_ns = 0;
			if (arrives)
				state->backoff = 0;
			if (!elsewhere) /* and it was, when this socket was reported */
				state->due_cpu = state->reported_cpu;
			return 0;
		}
	}
	if (verdict == UNPAID || !is_worth_reporting(sk, state, now) || !watched(sk))
		return 0;
	if (is_taken_along(sk, state, cpu)) {
		state->reported_cpu = state->due_cpu = cpu;
		state->reported_ns = state->came_ns = now;
		state->backoff = 0;
		state->window_ns = 0;
		return 0;
	}
	state->window_cpu = cpu;
	return report(sk, state, rx, home, verdict == PAID);
}

/* Of a socket that receives through a watched NIC; NULL: it does not. */
static __always_inline struct socket_state *state_of(struct sock *sk)
{
	struct socket_state *state = bpf_sk_storage_get(&sockets, sk, 0, 0);

	return state ?: watched(sk) ? admit(sk) : NULL;
}

/* This thread must be reported as a reader of the port: it is not one of the two that were reported
 * in this second, and there were not two yet. */
static __always_inline bool is_news(struct sock *sk, __u32 tid)
{
	struct service service = { sk->__sk_common.skc_net.net->ns.inum, sk->__sk_common.skc_num };
	struct service_readers fresh = { bpf_ktime_get_ns(), tid, 0 };
	struct service_readers *known = bpf_map_lookup_elem(&readers, &service);

	if (!known || fresh.since_ns - known->since_ns > READERS_NS) {
		bpf_map_update_elem(&readers, &service, &fresh, BPF_ANY);
		return true;
	}
	if (known->first == tid || known->second)
		return false;
	known->second = tid;
	return true;
}

/* The thread that serves a port reads each of its connections at least once, however short they
 * are. */
static __always_inline void first_read(struct sock *sk, struct socket_state *state)
{
	__u64 pid_tgid = bpf_get_current_pid_tgid();
	struct observer_record *record;

	state->unread = 0;
	state->reader = pid_tgid;
	if (!is_news(sk, pid_tgid))
		return;
	record = reserve(OBSERVER_READS);
	if (!record)
		return;
	describe(record, sk);
	record->app_cpu = bpf_get_smp_processor_id();
	record->tid = pid_tgid;
	record->pid = pid_tgid >> 32;
	record->uid = bpf_get_current_uid_gid();
	record->cgroup = bpf_get_current_cgroup_id();
	bpf_get_current_comm(record->comm, sizeof(record->comm));
	bpf_ringbuf_submit(record, 0);
}

/* The CPU that its packets arrive on; below 0: no packet yet, or an unconnected UDP socket, whose
 * packets leave no CPU. RFS is for threads that do not stay: what it hands to a thread that is pinned
 * comes to the wrong queue. */
static __always_inline int arrives_on(struct sock *sk, struct socket_state *state)
{
	int rx = sk->__sk_common.skc_incoming_cpu;
	__u32 hands_on;

	if (rx < 0 || !is_pinned())
		return rx;
	hands_on = napi_of(sk, state)->hands_on;
	return hands_on == OBSERVER_NO_CPU ? rx : (int)hands_on;
}

static __always_inline int used(struct sock *sk, struct socket_state *state, int length)
{
	__u32 cpu = bpf_get_smp_processor_id();
	int rx = arrives_on(sk, state);

	state->bytes += length;
	if (!state->window_ns &&
	    ((state->reported_cpu == cpu && (rx == (int)state->due_cpu || rx < 0)) ||
	     (state->reported_cpu == OBSERVER_NO_CPU && rx == (int)cpu && !elsewhere)))
		return 0;
	if (is_left(sk, state))
		return 0;
	return off_target(sk, state, cpu, rx, length);
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(on_recv, struct sock *sk, int length, int flags)
{
	struct socket_state *state = length > 0 ? state_of(sk) : NULL;

	if (!state)
		return 0;
	count_read(sk, state, length, flags);
	if (state->unread)
		first_read(sk, state);
	return used(sk, state, length);
}

SEC("tp_btf/sock_send_length")
int BPF_PROG(on_send, struct sock *sk, int length)
{
	struct socket_state *state = length > 0 ? state_of(sk) : NULL;

	return state ? used(sk, state, length) : 0;
}

static __always_inline void report_end(struct socket_state *state, __u64 cookie)
{
	struct observer_record *record;

	if (!state || state->reported_cpu == OBSERVER_NO_CPU)
		return;
	record = reserve(OBSERVER_GONE);
	if (!record)
		return;
	record->cookie = cookie;
	bpf_ringbuf_submit(record, 0);
}

/* The last close of any socket, in inet_release() (net/ipv4/af_inet.c). The end of a UDP socket is
 * no change of a state. */
SEC("cgroup/sock_release")
int on_release(struct bpf_sock *sk)
{
	if (sk->protocol == IPPROTO_UDP)
		report_end(bpf_sk_storage_get(&sockets, sk, 0, 0), bpf_get_socket_cookie(sk));
	return 1;
}

SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int old_state, int new_state)
{
	note_direction(sk, old_state, new_state);
	if (new_state == TCP_CLOSE) {
		report_end(bpf_sk_storage_get(&sockets, sk, 0, 0), bpf_get_socket_cookie(sk));
	} else if (new_state == TCP_ESTABLISHED && watched(sk)) {
		/* sk_state is written after the tracepoint (inet_sk_set_state), so steerable()
		 * would still see the old one; the birth time is all that is wanted here. */
		struct socket_state fresh = FRESH;

		fresh.born_ns = bpf_ktime_get_ns();
		fresh.unread = old_state == TCP_SYN_RECV;
		bpf_sk_storage_get(&sockets, sk, &fresh, BPF_SK_STORAGE_GET_F_CREATE);
	}
	return 0;
}

SEC("tp_btf/sched_migrate_task")
int BPF_PROG(on_migrate, struct task_struct *task, int destination)
{
	__u32 tid = task->pid;
	struct thread_state *thread = bpf_map_lookup_elem(&threads, &tid);
	__u64 now;

	if (!thread)
		return 0;
	now = bpf_ktime_get_ns();
	for (__u32 level = 0; level < OBSERVER_LEVELS; level++) {
		struct stay *stay = &thread->at[level];
		__u32 part = part_of(destination, level);

		if (stay->part == part)
			continue;
		leave(stay, part, now);
		arrive(stay, part, now);
	}
	return 0;
}

char _license[] SEC("license") = "GPL";
