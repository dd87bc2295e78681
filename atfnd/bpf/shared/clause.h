/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What a policy's rules come to where they are judged: in the observer's BPF programs, and, the same
 * code, for tests (py_clause.c). atfnd/model/policy.py says what a list of clauses means.
 */
#ifndef ATFND_CLAUSE_H
#define ATFND_CLAUSE_H

#include <linux/types.h>

#define CLAUSES 256 /* of one policy */
#define CLAUSE_NO_GROUP 0xff
#define CLAUSE_NEVER (~0ULL) /* as min_bytes: no clause that steers is met */

enum clause_protocol { CLAUSE_TCP = 1, CLAUSE_UDP = 2, CLAUSE_SCTP = 4 };

struct clause {
	__u64 min_bytes;
	__u64 min_age_ns;
	__u8 local[16]; /* network order, an IPv4 address in the first four; 0 below the mask */
	__u8 local_mask[16];
	__u8 remote[16];
	__u8 remote_mask[16];
	__u16 low_port; /* both in; the local or the remote one */
	__u16 high_port;
	__u8 protocols;	   /* enum clause_protocol */
	__u8 local_family; /* 4 or 6; 0: any address, or none */
	__u8 remote_family;
	__u8 direction; /* enum observer_flag; 0: any */
	__u8 group;
	__u8 leaves;
};

struct clause_facts {
	__u64 groups; /* that the application is in */
	__u8 local[16];
	__u8 remote[16];
	__u16 local_port;
	__u16 remote_port;
	__u8 family;
	__u8 protocol;
	__u8 direction; /* 0: not known */
	__u8 groups_known;
};

struct clause_verdict {
	__u64 min_bytes;
	__u64 min_age_ns;
};

#define CLAUSE_SILENT { .min_bytes = CLAUSE_NEVER, .min_age_ns = CLAUSE_NEVER }

static inline int clause_inside(const __u8 *address, const __u8 *network, const __u8 *mask)
{
	__u64 is[2], wanted[2], masked[2];

	__builtin_memcpy(is, address, 16);
	__builtin_memcpy(wanted, network, 16);
	__builtin_memcpy(masked, mask, 16);
	if (!is[0] && !is[1])
		return 0; /* not bound */
	return (is[0] & masked[0]) == wanted[0] && (is[1] & masked[1]) == wanted[1];
}

static inline int clause_meets(const struct clause *clause, const struct clause_facts *facts)
{
	__u16 low = clause->low_port, high = clause->high_port;

	if (!(clause->protocols & facts->protocol))
		return 0;
	if (!(low <= facts->local_port && facts->local_port <= high) &&
	    !(low <= facts->remote_port && facts->remote_port <= high))
		return 0;
	if (clause->local_family &&
	    (clause->local_family != facts->family ||
	     !clause_inside(facts->local, clause->local, clause->local_mask)))
		return 0;
	if (clause->remote_family &&
	    (clause->remote_family != facts->family ||
	     !clause_inside(facts->remote, clause->remote, clause->remote_mask)))
		return 0;
	if (clause->direction) {
		if (facts->protocol == CLAUSE_UDP)
			return 0; /* it has none */
		if (facts->direction ? facts->direction != clause->direction : clause->leaves)
			return 0;
	}
	if (clause->group == CLAUSE_NO_GROUP)
		return 1;
	return facts->groups_known ? facts->groups >> (clause->group & 63) & 1 : !clause->leaves;
}

/* Takes one clause into account; 1: it decides, and those after it say nothing. */
static inline int clause_judge(const struct clause *clause, const struct clause_facts *facts,
			       struct clause_verdict *verdict)
{
	if (!clause_meets(clause, facts))
		return 0;
	if (clause->leaves)
		return 1;
	if (clause->min_bytes < verdict->min_bytes)
		verdict->min_bytes = clause->min_bytes;
	if (clause->min_age_ns < verdict->min_age_ns)
		verdict->min_age_ns = clause->min_age_ns;
	return 0;
}

#endif
