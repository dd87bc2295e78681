/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the policy's clauses say of a socket: judged once, and again when another policy is in force,
 * when a process of another control group uses it, or when the verdict is old: a UDP socket may be
 * connected elsewhere, a control group become known.
 */
#ifndef ATFND_OBSERVER_VERDICT_BPF_H
#define ATFND_OBSERVER_VERDICT_BPF_H

#include "clause.h"
#include "ends.bpf.h"
#include "observer_direction.bpf.h"
#include "observer_state.bpf.h"

#define VERDICT_JIFFIES 250 /* 0.25 to 2.5 s, by CONFIG_HZ */

/* Of two policies, that in force and the one before or after it: number `generation` has its clauses
 * from (generation & 1) * CLAUSES on. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * CLAUSES);
	__type(key, __u32);
	__type(value, struct clause);
} clauses SEC(".maps");

struct group_key {
	__u64 cgroup;
	__u64 generation;
};

/* The groups of a policy that a control group is in, as far as user space has said. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct group_key);
	__type(value, __u64);
} groups SEC(".maps");

bool grouped = false; /* some clause asks for a group */
__u32 generation = 0;

/* Put the layouts into this object's BTF. */
const struct clause *clause_layout __attribute__((unused));
const struct clause_facts *clause_facts_layout __attribute__((unused));
const struct group_key *group_key_layout __attribute__((unused));

struct judging {
	struct clause_facts facts;
	struct clause_verdict verdict;
	__u32 first;
	bool decided;
};

/* The control group of the calling process. That of a thread may differ (threaded mode), but the
 * policy's names are those of processes. */
static __always_inline __u64 callers_cgroup(void)
{
	struct task_struct *task = bpf_get_current_task_btf();

	return grouped ? BPF_CORE_READ(task, group_leader, cgroups, dfl_cgrp, kn, id) : 0;
}

static long judge_next(__u32 at, struct judging *judging)
{
	__u32 index = judging->first + at;
	struct clause *clause = bpf_map_lookup_elem(&clauses, &index);

	judging->decided = clause && clause_judge(clause, &judging->facts, &judging->verdict);
	return !clause || judging->decided;
}

static void gather(struct clause_facts *facts, struct sock *sk, const struct group_key *caller)
{
	const struct sock_common *common = &sk->__sk_common;
	__u8 *direction = bpf_sk_storage_get(&directions, sk, 0, 0);
	__u64 *known = caller->cgroup ? bpf_map_lookup_elem(&groups, caller) : NULL;
	bool both; /* its second flow has no address either, and no clause asks for a family alone */

	facts->family = read_ends(common, facts->local, facts->remote, &both);
	facts->local_port = common->skc_num;
	facts->remote_port = bpf_ntohs(common->skc_dport);
	facts->protocol = sk->sk_protocol == IPPROTO_TCP   ? CLAUSE_TCP
			  : sk->sk_protocol == IPPROTO_UDP ? CLAUSE_UDP
							   : CLAUSE_SCTP;
	facts->direction = direction ? *direction : 0;
	facts->groups_known = known != NULL;
	facts->groups = known ? *known : 0;
}

static void judge(struct sock *sk, struct socket_state *state, __u64 cgroup)
{
	struct group_key caller = { .cgroup = cgroup,
				    .generation = *(volatile __u32 *)&generation };
	struct judging judging = { .verdict = CLAUSE_SILENT };

	judging.first = (caller.generation & 1) * CLAUSES;
	gather(&judging.facts, sk, &caller);
	bpf_loop(CLAUSES, judge_next, &judging, 0);
	/* Written over while it was read, which takes two reloads: judged again at the next call. */
	if (!judging.decided || *(volatile __u32 *)&generation != caller.generation)
		judging.verdict = (struct clause_verdict){};
	state->verdict = judging.verdict;
	state->cgroup = cgroup;
	state->generation = caller.generation;
	state->judged_jiffies = bpf_jiffies64();
}

static __always_inline bool is_judged(struct socket_state *state, __u64 cgroup)
{
	return state->generation == generation && state->cgroup == cgroup &&
	       bpf_jiffies64() - state->judged_jiffies < VERDICT_JIFFIES;
}

/* A socket that was reported may have a filter that must go: it is reported on, whatever the policy
 * says now. */
static __always_inline bool is_silent(struct socket_state *state)
{
	return state->verdict.min_bytes == CLAUSE_NEVER && state->reported_cpu == OBSERVER_NO_CPU;
}

/* No rule steers it: found so before, and still true. */
static __always_inline bool is_left(struct sock *sk, struct socket_state *state)
{
	__u64 cgroup;

	if (!is_silent(state))
		return false;
	cgroup = callers_cgroup();
	if (is_judged(state, cgroup))
		return true;
	judge(sk, state, cgroup);
	if (is_silent(state))
		return true;
	state->window_ns = 0; /* what was seen of it then is no evidence now */
	return false;
}

/* It has reached what the policy asks for. */
static __always_inline bool is_worth_reporting(struct sock *sk, struct socket_state *state,
					       __u64 now)
{
	__u64 cgroup = callers_cgroup();

	if (!is_judged(state, cgroup))
		judge(sk, state, cgroup);
	if (state->verdict.min_bytes == CLAUSE_NEVER)
		return !is_silent(state);
	return state->bytes >= state->verdict.min_bytes &&
	       now - state->born_ns >= state->verdict.min_age_ns;
}

#endif
