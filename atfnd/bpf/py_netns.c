/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A visit to another network namespace, for the one system call that takes its namespace from the
 * calling thread. setns(2) changes this thread only; the GIL is held throughout, so no other Python
 * code runs on it meanwhile.
 */
#define _GNU_SOURCE
#include "ext.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

int ext_enter_netns(int netns)
{
	int home, error;

	if (netns < 0)
		return -1;
	home = open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
	if (home < 0)
		return -errno - 1;
	if (setns(netns, CLONE_NEWNET)) {
		error = errno;
		close(home);
		return -error - 1;
	}
	return home;
}

void ext_leave_netns(int home)
{
	if (home < 0)
		return;
	if (setns(home, CLONE_NEWNET))
		Py_FatalError("cannot return to the home network namespace");
	close(home);
}
