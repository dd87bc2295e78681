/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * bpf(2), BPF_PROG_TEST_RUN of read_backlog(), once for each possible CPU.
 */
#include "backlogs.h"

#include <bpf/bpf.h>
#include <errno.h>

/* 1, or 0: there is no such backlog; a negative errno. */
static int read_one(int program, struct transit_backlog *backlog)
{
	LIBBPF_OPTS(bpf_test_run_opts, run, .ctx_in = backlog, .ctx_size_in = sizeof(*backlog));

	if (bpf_prog_test_run_opts(program, &run))
		return -errno;
	return run.retval == 1;
}

int backlogs_mark(struct backlogs *backlogs)
{
	for (int cpu = 0; cpu < backlogs->cpus && cpu < TRANSIT_CPUS; cpu++) {
		struct transit_backlog backlog = { .cpu = cpu };
		int error = read_one(backlogs->program, &backlog);

		if (error < 0)
			return error;
		backlogs->tail[cpu] = backlog.tail;
	}
	return 0;
}

int backlogs_passed(const struct backlogs *backlogs)
{
	for (int cpu = 0; cpu < backlogs->cpus && cpu < TRANSIT_CPUS; cpu++) {
		struct transit_backlog backlog = { .cpu = cpu };
		int there = read_one(backlogs->program, &backlog);

		if (there < 0 || (there && (__s32)(backlog.head - backlogs->tail[cpu]) < 0))
			return 0;
	}
	return 1;
}

int backlogs_known(const struct backlogs *backlogs, int cpu)
{
	struct transit_backlog backlog = { .cpu = cpu };

	return read_one(backlogs->program, &backlog) == 1;
}
