/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the observer and user space share: one record for everything that goes up. The Python side
 * takes its format from the BTF of this struct (atfnd/bpf/layout.py).
 */
#ifndef ATFND_OBSERVER_H
#define ATFND_OBSERVER_H

#include <linux/types.h>

#define OBSERVER_NO_CPU 0xffffffffu
#define OBSERVER_NOWHERE 0xfffffffeu /* no packet arrives there */
#define OBSERVER_CPUS 4096 /* whose part of the machine is known; the others are in part 0 */
#define OBSERVER_NICS 1024 /* whose reads are counted; OBSERVER_NICS itself is none of them */

enum observer_kind {
	OBSERVER_SEEN = 1,   /* a qualified socket is used off the CPU it was last reported on */
	OBSERVER_GONE = 2,   /* a reported socket was closed: only cookie and at_ns are set */
	OBSERVER_SOCKET = 3, /* one row of an iterator */
	/* a thread read an accepted connection first, of the two reported a second */
	OBSERVER_READS = 4,
};

enum observer_flag {
	OBSERVER_DUAL_STACK = 1, /* an unconnected IPv6 socket that also receives IPv4 */
	OBSERVER_REPORTED = 2,	 /* reported before */
	OBSERVER_ACCEPTED = 4,	 /* a listener took it; neither: not known */
	OBSERVER_CONNECTED = 8,
	/* one of several UDP sockets of this address and port (SO_REUSEPORT) */
	OBSERVER_GROUP = 16,
	OBSERVER_PINNED = 32, /* its thread may run on one CPU only */
};

/* A NAPI whose sockets are observed. */
struct watched_napi {
	__u32 nic;	/* which of `reads` is its NIC's */
	__u32 hands_on; /* the CPU that polls it, if RFS hands its packets on; OBSERVER_NO_CPU: no */
};

/* Parts of a machine, the smallest first. OBSERVER_LEVELS stands for all of it. */
enum observer_level { OBSERVER_CPU, OBSERVER_LLC, OBSERVER_NODE, OBSERVER_LEVELS };

/* The parts that a CPU is in. */
struct cpu_parts {
	__u32 llc;
	__u32 node;
};

/* What a move of flows costs, and what it saves. */
struct stay_prices {
	__u64 move_ns;	   /* 0: every stay is reported */
	__u64 first_ns;	   /* the lowest price of a move, of a thread that is trusted */
	__u64 patience_ns; /* a move was in vain if the thread left earlier than that after it */
	__u64 cpu_ns;	   /* a packet takes longer by this, from another CPU of the LLC */
	__u64 llc_ns;	   /* from another LLC of the node */
	__u64 node_ns;	   /* from another node */
	__u32 levels;	   /* so many divide this machine */
	__u32 doubt;	   /* doublings of the price with which a thread begins on its first CPU */
};

struct observer_record {
	__u64 at_ns;
	__u64 cookie;
	__u64 bytes;
	__u64 cgroup;
	__u64 off_since_ns;
	__u64 born_ns; /* established, or first used after the observer started */
	__u32 kind;
	__u32 netns;
	__u32 app_cpu;
	__u32 rx_cpu;
	__u32 napi_id;
	__u32 tid;
	__u32 pid;
	__u8 local[16]; /* network order; 4-aligned: the verifier wants it for word compares */
	__u8 remote[16];
	__u8 comm[16];
	__u16 local_port;
	__u16 remote_port;
	__u8 family; /* 4 or 6; an IPv4-mapped socket is 4 */
	__u8 protocol;
	__u8 flags;
	__u8 home; /* enum observer_level: where its thread stays; OBSERVER_LEVELS: nowhere */
	__u32 uid; /* real, of the whole machine */
};

/* Bytes that applications read, by where the kernel had processed them. */
struct read_counters {
	__u64 local;  /* on the CPU that read them */
	__u64 remote; /* on another one */
	__u64 unseen; /* the kernel keeps no CPU: unconnected UDP */
};

#define OBSERVER_SURVEYED 16384 /* entries of the map `survey` */

/* A survey counts which thread reads how much, and where, for as long as user space asks for it. */
struct survey_key {
	__u32 tid;
	__u32 nic;	/* which of `reads` is its NIC's */
	__u32 read_cpu; /* that the thread read on */
	__u32 rx_cpu;	/* that had processed the data; OBSERVER_NO_CPU: the kernel keeps none */
	__u32 left;	/* the policy leaves the socket alone, as far as it was judged */
};

struct survey_count {
	__u64 bytes;
	__u64 calls;
	__u64 accepted; /* of them, first reads of a connection that a listener took */
	__u32 pid;
	__u32 allowed; /* so many CPUs the thread could run on, at its last read */
	__u32 port;    /* the local one of the last such connection, 0: none */
	__u8 comm[16]; /* of the process */
};

#endif
