/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The backlogs of the CPUs (softnet_data, net/core/dev.c), into which RPS and RFS hand packets: have they
 * delivered all that they held? Read by read_backlog() in transit.bpf.c.
 */
#ifndef ATFND_BACKLOGS_H
#define ATFND_BACKLOGS_H

#include "transit.h"

struct backlogs {
	int program; /* descriptor of read_backlog() */
	int cpus;    /* possible ones */
	__u32 tail[TRANSIT_CPUS];
};

/* Notes what has been given until now to each backlog that is known: 0, or a negative errno. */
int backlogs_mark(struct backlogs *backlogs);

/* Each backlog has delivered all that was noted. */
int backlogs_passed(const struct backlogs *backlogs);

/* Is it known where the backlog of this CPU is? It is once it was polled. */
int backlogs_known(const struct backlogs *backlogs, int cpu);

#endif
