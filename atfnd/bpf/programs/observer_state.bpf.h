/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the observer keeps in the kernel: state per socket, watched NAPIs, owning threads, settings.
 */
#ifndef ATFND_OBSERVER_STATE_BPF_H
#define ATFND_OBSERVER_STATE_BPF_H

#include "clause.h"
#include "kernel_types.h"
#include "observer.h"
#include <bpf/bpf_helpers.h>

#define IPPROTO_TCP 6
#define IPPROTO_UDP 17
#define IPPROTO_SCTP 132

/* include/net/tcp_states.h; SCTP's established is the same number. */
enum {
	TCP_ESTABLISHED = 1,
	TCP_FIN_WAIT1 = 4,
	TCP_FIN_WAIT2 = 5,
	TCP_CLOSE = 7,
	TCP_CLOSE_WAIT = 8
};
#define RECEIVING_STATES                                                                           \
	(1 << TCP_ESTABLISHED | 1 << TCP_FIN_WAIT1 | 1 << TCP_FIN_WAIT2 | 1 << TCP_CLOSE_WAIT)

struct socket_state {
	__u64 born_ns;
	__u64 bytes;
	__u64 reported_ns; /* at_ns of the last report */
	__u64 came_ns;	   /* at_ns of the first report from reported_cpu */
	__u64 window_ns;   /* start of the present stay off the reported CPU, 0: none */
	__u32 window_calls;
	__u32 window_hits; /* calls of the window made on window_cpu */
	__u32 window_cpu;
	__u32 reported_cpu;
	__u32 tid; /* reported with it, or the first to use it */
	__u32 backoff;
	__u32 due_cpu;	  /* its packets arrive right there; OBSERVER_NO_CPU: ask `due` */
	__u32 generation; /* the policy's that `verdict` is by, 0: not judged yet */
	__u32 napi_id;	  /* of `napi`, in watching number `watching` */
	__u32 watching;
	struct watched_napi napi;
	__u32 home;	  /* of its thread, as it was reported last */
	__u32 goes_along; /* its thread was pinned then, and its packets came to another CPU */
	__u32 unread;	  /* a listener accepted it, and it has not been read from */
	__u32 reader;	  /* the first thread that read from it then */
	__u64 cgroup;	  /* the user's that it is of, if that was asked for */
	__u64 judged_jiffies;
	struct clause_verdict verdict;
};

#define FRESH { .reported_cpu = OBSERVER_NO_CPU, .due_cpu = OBSERVER_NO_CPU }

/* The stay of a thread in one part of the machine. */
struct stay {
	__u64 since_ns;
	__u64 lost_ns;	/* by packets from outside since then, less what was spent on moves */
	__u64 moved_ns; /* its flows were reported as to be moved here, 0: they were not */
	__u32 part;
	__u8 doublings;	   /* of the price of a move */
	__u8 in_vain : 1;  /* the last move to a part of this level was */
	__u8 returned : 1; /* it has come from where it had been before */
	__u16 back;	   /* the part that it was in before, and 1; 0: none */
};

/* The stays of a thread that owns reported flows, by level. */
struct thread_state {
	struct stay at[OBSERVER_LEVELS];
	__u32 pinned_cpu; /* of its last report; OBSERVER_NO_CPU: it was not pinned */
	__u32 nic;	  /* of its last report, as in watched_napi */
};

struct service {
	__u32 netns;
	__u32 port;
};

/* Which threads were reported, of those that were first to read a connection of a port. Two are
 * enough to know that there are several. */
struct service_readers {
	__u64 since_ns;
	__u32 first;
	__u32 second;
};

struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct socket_state);
} sockets SEC(".maps");

/* Watched NAPIs. Ids are never reused within a boot, so an id also names a namespace. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct watched_napi);
} napis SEC(".maps");

/* By NIC. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, OBSERVER_NICS);
	__type(key, __u32);
	__type(value, struct read_counters);
} reads SEC(".maps");

/* Empty but while a survey lasts; then an entry takes about 150 bytes. A thread reads on few CPUs
 * what was processed on few others, so there are a few entries for a thread. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, OBSERVER_SURVEYED);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct survey_key);
	__type(value, struct survey_count);
} survey SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, OBSERVER_CPUS);
	__type(key, __u32);
	__type(value, struct cpu_parts);
} cpu_parts SEC(".maps");

/* Threads that own a reported flow, by tid. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct thread_state);
} threads SEC(".maps");

/* Accepting ports whose connections were read. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct service);
	__type(value, struct service_readers);
} readers SEC(".maps");

/* What the next walk of an iterator writes into reported_cpu: adopted sockets (rules of an earlier run)
 * get a CPU, forgotten ones OBSERVER_NO_CPU. By cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, __u32);
} marked SEC(".maps");

struct due {
	__u64 at_ns; /* of the report that this answers */
	__u32 cpu;
};

/* Where the packets of reported sockets should arrive, if not all go to the application's CPU. By
 * cookie; at worst, a socket that is forgotten here is reported again. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u64);
	__type(value, struct due);
} due SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4 << 20);
} records SEC(".maps");

/* Settable at run time through the mapped .data/.bss. */
__u64 dwell_ns = 100000000;
__u64 report_again_ns = 1000000000;
struct stay_prices prices = {};
__u64 spent_until_ns = 0; /* early moves are paid for until then (observer_stay.bpf.h) */
__u64 lost = 0;
__u32 surveying = 0;	/* user space asks for a survey */
__u64 not_surveyed = 0; /* bytes that found its map full */
__u32 elsewhere = 0;	/* some policy wants packets on another CPU than the application's */

/* Counts the sets of NAPIs watched: what a socket keeps of an earlier one is old. */
__u32 watching = 1;

/* Put the layouts into this object's BTF, where user space reads them. */
const struct observer_record *observer_record_layout __attribute__((unused));
const struct watched_napi *watched_napi_layout __attribute__((unused));
const struct due *due_layout __attribute__((unused));
const struct cpu_parts *cpu_parts_layout __attribute__((unused));
const struct stay_prices *stay_prices_layout __attribute__((unused));
const struct survey_key *survey_key_layout __attribute__((unused));
const struct survey_count *survey_count_layout __attribute__((unused));

#endif
