// SPDX-License-Identifier: GPL-2.0-or-later
/*
 * TCP flows before data can be in flight: connects, as their SYN leaves, and listeners.
 *
 * A sockops program of the root cgroup. tcp_connect() (net/ipv4/tcp_output.c) calls it in the
 * connecting thread once both ports are known, before it sends the SYN; tcp_finish_connect()
 * (net/ipv4/tcp_input.c) when the SYN was answered, before our ACK; inet_listen() (af_inet.c) in
 * the listening thread; tcp_child_process() (tcp_minisocks.c) has marked an accepted socket with the
 * NAPI of the ACK before tcp_init_transfer() calls it. It replies to nothing and sets no flag: a socket behaves as without it.
 * The end of a socket is inet_sock_set_state, as the sockops callback for it would have to be asked
 * for per socket, and every other program of this cgroup would be called for it. sched_process_fork
 * (copy_process(), kernel/fork.c) says that a process which listens makes a thread or a child.
 */
#include "birth.h"
#include "ends.bpf.h"
#include <bpf/bpf_tracing.h>

/* BPF_PROG declares a context argument even where only the typed ones are used. */
#pragma clang diagnostic ignored "-Wunused-parameter"

#define GO_ON 1
enum { TCP_CLOSE = 7, TCP_LISTEN = 10 }; /* include/net/tcp_states.h */

__u64 lost; /* events that found the ring buffer full */

/* Served network namespaces, by inode number. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} served SEC(".maps");

/* Local ports whose accepted connections are reported: as many as there are. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u16);
	__type(value, __u8);
} accepting SEC(".maps");

/* When a reported socket began to connect or to listen. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, __u64);
} announced SEC(".maps");

/* Processes that had one thread when they began to listen, and have not forked since. One that finds
 * no room here counts as one that has. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, __u8);
} alone SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20); /* set when loaded */
} events SEC(".maps");

/* Keeps the struct in our BTF, where the Python side reads its layout. */
const struct birth_event *event_layout __attribute__((unused));

static bool is_served(const struct sock_common *common)
{
	__u32 netns = common->skc_net.net->ns.inum;

	return bpf_map_lookup_elem(&served, &netns);
}

static struct birth_event *reserve(__u32 kind, __u64 now)
{
	struct birth_event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);

	if (!event) {
		__sync_fetch_and_add(&lost, 1);
		return NULL;
	}
	__builtin_memset(event, 0, sizeof(*event));
	event->kind = kind;
	event->at_ns = now;
	return event;
}

static __always_inline void describe(struct birth_event *event, const struct sock_common *common)
{
	bool both;

	event->netns = common->skc_net.net->ns.inum;
	event->local_port = common->skc_num;
	event->remote_port = bpf_ntohs(common->skc_dport);
	event->family = read_ends(common, event->local, event->remote, &both);
	if (both)
		event->flags |= BIRTH_DUAL_STACK;
}

/* These two are called by the thread that connects or listens. */
static __always_inline void name_thread(struct birth_event *event)
{
	struct task_struct *task = bpf_get_current_task_btf();

	event->cpu = bpf_get_smp_processor_id();
	event->tid = task->pid;
	event->pid = task->tgid;
	event->uid = BPF_CORE_READ(task, cred, uid.val);
	event->cgroup = BPF_CORE_READ(task, cgroups, dfl_cgrp, kn, id);
	bpf_probe_read_kernel(event->comm, sizeof(event->comm), task->comm);
}

/* Reports its listener before anything that the listener makes can be reported. */
static __always_inline bool is_alone(void)
{
	struct task_struct *task = bpf_get_current_task_btf();
	__u32 pid = task->tgid;
	__u8 yes = 1;

	return BPF_CORE_READ(task, signal, nr_threads) == 1 &&
	       !bpf_map_update_elem(&alone, &pid, &yes, BPF_ANY);
}

static __always_inline void begins(struct bpf_sock_ops *ops, struct tcp_sock *tcp, __u32 kind)
{
	const struct sock_common *common = &((struct sock *)tcp)->__sk_common;
	__u64 now = bpf_ktime_get_ns();
	struct birth_event *event;

	if (tcp->fastopen_req)
		return; /* its peer need not wait for our ACK (RFC 7413) */
	bpf_sk_storage_get(&announced, tcp, &now, BPF_SK_STORAGE_GET_F_CREATE);
	event = reserve(kind, now);
	if (!event)
		return;
	event->cookie = bpf_get_socket_cookie(ops);
	describe(event, common);
	name_thread(event);
	if (kind == BIRTH_LISTENING && is_alone())
		event->flags |= BIRTH_ALONE;
	if (bpf_get_current_task_btf()->nr_cpus_allowed == 1)
		event->flags |= BIRTH_PINNED;
	bpf_ringbuf_submit(event, 0);
}

static __always_inline void connected(struct bpf_sock_ops *ops, struct tcp_sock *tcp)
{
	const struct sock_common *common = &((struct sock *)tcp)->__sk_common;
	__u64 *began_ns = bpf_sk_storage_get(&announced, tcp, NULL, 0);
	__u64 now = bpf_ktime_get_ns();
	struct birth_event *event;

	if (!began_ns)
		return; /* it began to connect before we came */
	event = reserve(BIRTH_CONNECTED, now);
	if (!event)
		return;
	event->cookie = bpf_get_socket_cookie(ops);
	event->handshake_ns = now - *began_ns;
	describe(event, common);
	bpf_ringbuf_submit(event, 0);
}

/* Nothing that the peer sent before this segment is missing. One that is ahead of others may
 * establish a connection too (tcp_check_req(), net/ipv4/tcp_minisocks.c, wants it in the window). */
static __always_inline bool is_next(struct bpf_sock_ops *ops, const struct tcp_sock *tcp)
{
	const __be32 *header = ops->skb_data; /* of TCP: its second word is the sequence number */
	const void *end = ops->skb_data_end;

	if ((const void *)(header + 2) > end)
		return false;
	return (__s32)(bpf_ntohl(header[1]) - tcp->rcv_nxt) <= 0;
}

static __always_inline void accepted(struct bpf_sock_ops *ops, struct tcp_sock *tcp)
{
	struct sock *sk = (struct sock *)tcp;
	__u16 port = sk->__sk_common.skc_num;
	struct birth_event *event;

	if (!bpf_map_lookup_elem(&accepting, &port))
		return;
	event = reserve(BIRTH_ACCEPTED, bpf_ktime_get_ns());
	if (!event)
		return;
	event->cookie = bpf_get_socket_cookie(ops);
	event->napi_id = is_next(ops, tcp) ? sk->sk_napi_id : 0;
	describe(event, &sk->__sk_common);
	bpf_ringbuf_submit(event, 0);
}

SEC("sockops")
int on_birth(struct bpf_sock_ops *ops)
{
	struct tcp_sock *tcp;
	__u32 op = ops->op;

	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB && op != BPF_SOCK_OPS_TCP_LISTEN_CB)
		return GO_ON;
	if (!ops->sk)
		return GO_ON;
	tcp = bpf_skc_to_tcp_sock(ops->sk);
	if (!tcp || !is_served(&((struct sock *)tcp)->__sk_common))
		return GO_ON;
	if (op == BPF_SOCK_OPS_ACTIVE_ESTABLISHED_CB)
		connected(ops, tcp);
	else if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		accepted(ops, tcp);
	else
		begins(ops, tcp,
		       op == BPF_SOCK_OPS_TCP_LISTEN_CB ? BIRTH_LISTENING : BIRTH_CONNECTING);
	return GO_ON;
}

/* A listener that was there before us was not reported by us, and its end is. */
SEC("tp_btf/inet_sock_set_state")
int BPF_PROG(on_state, struct sock *sk, int old_state, int new_state)
{
	struct birth_event *event;

	if (new_state != TCP_CLOSE || !is_served(&sk->__sk_common))
		return 0;
	if (old_state != TCP_LISTEN && !bpf_sk_storage_get(&announced, sk, 0, 0))
		return 0;
	event = reserve(BIRTH_GONE, bpf_ktime_get_ns());
	if (!event)
		return 0;
	event->cookie = bpf_get_socket_cookie(sk);
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* Of a thread as of a process: what is copied is the same. */
SEC("tp_btf/sched_process_fork")
int BPF_PROG(on_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 pid = parent->tgid;
	struct birth_event *event;

	if (!bpf_map_lookup_elem(&alone, &pid))
		return 0;
	event = reserve(BIRTH_FORKED, bpf_ktime_get_ns());
	if (!event)
		return 0; /* it is reported at the next one */
	event->pid = pid;
	bpf_ringbuf_submit(event, 0);
	bpf_map_delete_elem(&alone, &pid);
	return 0;
}

char _license[] SEC("license") = "GPL";
