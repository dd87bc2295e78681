/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Where a thread stays, and whether its stay pays for a move of its flows (docs/unpinned.md).
 *
 * At each level (CPU, LLC, node) the same rule: what packets from outside of the part lose is added
 * up while the thread stays in it; when the sum reaches the price of a move, the move pays. Renting
 * until the rent equals the price costs at most twice the best decision with hindsight (Karlin et al.,
 * Algorithmica 3, 1988). The price begins far below what a move costs and grows with each move in
 * vain. What moves cost above what they were paid is limited for all threads together.
 */
#ifndef ATFND_OBSERVER_STAY_BPF_H
#define ATFND_OBSERVER_STAY_BPF_H

#include "observer_state.bpf.h"
#include <bpf/bpf_helpers.h>

#define SEGMENT_BYTES 1448 /* of a full TCP segment with timestamps, on Ethernet */
#define MAX_DOUBLINGS 17
#define IN_VAIN 2      /* doublings of the price by a move in vain */
#define RETURNS 64     /* times `patience_ns`: to and fro within that is in vain, too */
#define WANDERS 4      /* doublings with which a part is no home */
#define EARLY_MOVES 32 /* at once; later ones as `patience_ns` allows */

/* UNPAID: not worth a record. HABIT: the home of its thread has become larger. PLACE: a move is due
 * whatever it has brought. PAID: the stay has brought the price of a move. */
enum verdict { UNPAID, HABIT, PLACE, PAID };
#define VERDICT(verdict, home) ((verdict) << 8 | (home)) /* both in one register */

static __always_inline bool is_pinned(void)
{
	return bpf_get_current_task_btf()->nr_cpus_allowed == 1;
}

/* What is not static here is verified by itself, once, and not again for each way to a call of it: with
 * all inline, the verifier walks 740,000 instructions (2 s of CPU) for programs of 5,000. */
__noinline __u32 part_of(__u32 cpu, __u32 level)
{
	struct cpu_parts *parts;

	if (level == OBSERVER_CPU)
		return cpu;
	parts = bpf_map_lookup_elem(&cpu_parts, &cpu);
	if (!parts)
		return 0;
	return level == OBSERVER_LLC ? parts->llc : level == OBSERVER_NODE ? parts->node : 0;
}

/* Both are CPUs, and in one part of this level. */
__noinline bool together(int a, int b, __u32 level)
{
	return a >= 0 && b >= 0 && part_of(a, level) == part_of(b, level);
}

static __always_inline void arrive(struct stay *stay, __u32 part, __u64 now)
{
	stay->back = stay->since_ns ? stay->part + 1 : 0;
	stay->part = part;
	stay->since_ns = now;
	stay->moved_ns = 0;
	stay->lost_ns = 0;
}

static __always_inline void arrive_all(struct thread_state *thread, __u32 cpu, __u64 now)
{
	for (__u32 level = 0; level < OBSERVER_LEVELS; level++)
		arrive(&thread->at[level], part_of(cpu, level), now);
}

/* A move in vain raises the price. A stay that was long enough lowers it, and again each time that it
 * was twice as long. After a move in vain, stays without one say nothing: the thread may leave as soon
 * as its packets come, because what delivers them takes its CPU. On full CPUs the scheduler moves it
 * some time later: a thread that goes to and fro between two of them has been moved in vain, whatever
 * its stays have brought. */
static __always_inline void leave(struct stay *stay, __u32 to, __u64 now)
{
	__u64 needs_ns = prices.patience_ns, stayed_ns = now - (stay->moved_ns ?: stay->since_ns);
	bool returns = stay->back == (__u16)(to + 1) && stayed_ns < RETURNS * needs_ns;
	bool to_and_fro = returns && stay->returned;

	stay->returned = returns;
	if (!stay->moved_ns && stay->in_vain)
		return;
	stay->in_vain = stay->moved_ns && (stayed_ns < needs_ns || to_and_fro);
	if (stay->in_vain) {
		stay->doublings += IN_VAIN;
		if (stay->doublings > MAX_DOUBLINGS)
			stay->doublings = MAX_DOUBLINGS;
		return;
	}
	for (int i = 0; i < MAX_DOUBLINGS; i++) {
		if (!stay->doublings || stayed_ns < needs_ns)
			break;
		stay->doublings--;
		needs_ns <<= 1;
	}
}

static __always_inline __u64 price_of(const struct stay *stay, __u64 now)
{
	__u64 price_ns = prices.first_ns << (stay->doublings & 31);

	return price_ns < prices.move_ns && spent_until_ns > now ? prices.move_ns : price_ns;
}

/* An early move: the budget of all threads pays for it. */
static __always_inline void spend(__u64 now)
{
	__u64 burst_ns = EARLY_MOVES * prices.patience_ns;
	__u64 from_ns = spent_until_ns + burst_ns > now ? spent_until_ns : now - burst_ns;

	spent_until_ns = from_ns + prices.patience_ns;
}

/* The farthest level that a packet comes from outside of. */
static __always_inline __u32 distance(__u32 cpu, int rx)
{
	__u32 far = OBSERVER_CPU;

	for (__u32 level = OBSERVER_LLC; level < OBSERVER_LEVELS; level++)
		if (rx >= 0 && !together(cpu, rx, level))
			far = level;
	return far;
}

__noinline int add_call(struct thread_state *thread, __u32 cpu, int rx, __u32 length, __u64 now)
{
	__u32 far = distance(cpu, rx);
	__u64 lost_ns = far == OBSERVER_NODE  ? prices.node_ns
			: far == OBSERVER_LLC ? prices.llc_ns
					      : prices.cpu_ns;

	if (!thread)
		return 0;
	lost_ns *= 1 + length / SEGMENT_BYTES;
	for (__u32 level = 0; level < OBSERVER_LEVELS; level++) {
		struct stay *stay = &thread->at[level];
		__u32 part = part_of(cpu, level);

		if (stay->part != part)
			arrive(stay, part, now);
		if (level <= far)
			stay->lost_ns += lost_ns;
	}
	return 0;
}

/* The smallest part that the thread does not leave before a move has paid, or that its flows were just
 * moved into. */
__noinline __u32 home_of(const struct thread_state *thread)
{
	if (!thread)
		return OBSERVER_LEVELS;
	for (__u32 level = 0; level < OBSERVER_LEVELS; level++)
		if (level < prices.levels &&
		    (thread->at[level].doublings < WANDERS || thread->at[level].moved_ns))
			return level;
	return OBSERVER_LEVELS;
}

/* The smallest part in which the stay has brought the price. One that is larger than the home needs
 * the home's price, too: else a thread that comes from far would have two moves. */
__noinline __u32 paid_level(const struct thread_state *thread, __u32 home, __u64 now)
{
	__u64 least_ns = 0;

	if (!thread)
		return OBSERVER_LEVELS;

	for (__u32 level = 0; level < OBSERVER_LEVELS; level++) {
		const struct stay *stay = &thread->at[level];
		__u64 price_ns = price_of(stay, now);

		if (level < prices.levels && stay->lost_ns >= price_ns && stay->lost_ns >= least_ns)
			return level;
		if (level == home)
			least_ns = price_ns;
	}
	return OBSERVER_LEVELS;
}

/* Flows of a thread are reported, to be moved into the part of `cpu` at level `home`. */
struct stay_move {
	__u64 at_ns;
	__u32 home;
	__u32 cpu;
	int rx;
	bool paid;
};

__noinline int moved(struct thread_state *thread, const struct stay_move *move)
{
	if (!thread || !move)
		return 0;
	for (__u32 level = 0; level < OBSERVER_LEVELS; level++) {
		struct stay *stay = &thread->at[level];
		__u64 price_ns = price_of(stay, move->at_ns);

		if (level < move->home || stay->part != part_of(move->cpu, level) ||
		    (level && (move->rx < 0 || together(move->cpu, move->rx, level))))
			continue;
		if (!stay->moved_ns)
			stay->moved_ns = move->at_ns;
		if (!move->paid)
			continue;
		if (level == move->home && price_ns < prices.move_ns)
			spend(move->at_ns);
		/* What is left pays for other flows; a larger part has got what it waited for. */
		stay->lost_ns -= level > move->home || stay->lost_ns < price_ns ? stay->lost_ns
										: price_ns;
	}
	return 0;
}

#endif
