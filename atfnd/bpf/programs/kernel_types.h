/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The kernel types our BPF programs read, declared by hand with only the fields used; CO-RE
 * relocates them against the running kernel's BTF. Sources: include/net/sock.h,
 * include/linux/{skbuff,netdevice,sched}.h, kernel/bpf iterators (net/ipv4/tcp_ipv4.c,
 * net/core/bpf_sk_storage.c).
 */
#ifndef ATFND_KERNEL_TYPES_H
#define ATFND_KERNEL_TYPES_H

#include <linux/bpf.h>
#include <linux/types.h>
#include <stdbool.h>
#include <stddef.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	union {
		__u8 u6_addr8[16];
	} in6_u;
};

struct sock_common {
	__be32 skc_daddr;
	__be32 skc_rcv_saddr;
	__be16 skc_dport;
	__u16 skc_num;
	unsigned short skc_family;
	volatile unsigned char skc_state;
	unsigned char skc_ipv6only : 1;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	int skc_incoming_cpu;
};

struct sock_reuseport {
	__u16 num_socks;
};

struct sock {
	struct sock_common __sk_common;
	unsigned int sk_napi_id;
	__u16 sk_protocol;
	struct sock_reuseport *sk_reuseport_cb;
};

struct net_device {
	int ifindex;
	possible_net_t nd_net;
};

struct tcp_sock {
	int lsndtime;
	__u32 rcv_nxt;
	void *fastopen_req;
};

struct udp_sock {
	int pending;
};

struct gro_node {
	unsigned long bitmask;
	unsigned int rx_count;
};

struct hrtimer_clock_base {
	struct hrtimer *running;
};

struct hrtimer {
	struct hrtimer_clock_base *base;
	__u8 state;
};

struct napi_struct {
	unsigned long state;
	struct gro_node gro;
	struct hrtimer timer;
	struct task_struct *thread;
	unsigned int napi_id;
	struct net_device *dev;
};

struct softnet_data {
	unsigned int input_queue_head;
	unsigned int input_queue_tail;
	struct napi_struct backlog;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup {
	struct kernfs_node *kn;
};

struct css_set {
	struct cgroup *dfl_cgrp;
};

typedef struct {
	unsigned int val;
} kuid_t;

struct cred {
	kuid_t uid;
};

struct signal_struct {
	int nr_threads;
};

struct task_struct {
	unsigned int __state;
	int pid;
	int tgid;
	int nr_cpus_allowed;
	char comm[16];
	struct task_struct *group_leader;
	const struct cred *cred;
	struct css_set *cgroups;
	struct signal_struct *signal;
	void *worker_private;
};

struct kthread {
	void *data;
};

struct sk_buff {
	struct net_device *dev;
	struct sock *sk;
	int skb_iif;
	__u16 queue_mapping;
	unsigned char *head;
	unsigned char *data;
	unsigned int end;
	__u8 encapsulation : 1;
	__u16 inner_transport_header;
	__u16 transport_header;
	__u16 network_header;
	__be16 protocol;
	unsigned int len;
	unsigned int napi_id;
};

struct skb_shared_info {
	unsigned short gso_size;
	unsigned short gso_segs;
	unsigned int gso_type;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

struct bpf_iter__tcp {
	struct bpf_iter_meta *meta;
	struct sock_common *sk_common;
	unsigned int uid;
};

struct bpf_iter__udp {
	struct bpf_iter_meta *meta;
	struct udp_sock *udp_sk;
	unsigned int uid;
	int bucket;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

#endif
