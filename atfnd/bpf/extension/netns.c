/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Another namespace is entered (setns(2)) by a thread that does nothing else and ends: there is nothing
 * to restore, so nothing can fail to be.
 */
#define _GNU_SOURCE
#include "netns.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

struct visit {
	int netns, error;
	void (*call)(void *argument);
	void *argument;
};

static void *enter(void *argument)
{
	struct visit *visit = argument;

	if (setns(visit->netns, CLONE_NEWNET))
		visit->error = errno;
	else
		visit->call(visit->argument);
	return NULL;
}

int netns_call(int netns, void (*call)(void *argument), void *argument)
{
	struct visit visit = { .netns = netns, .call = call, .argument = argument };
	pthread_t thread;
	int error;

	if (netns < 0) {
		call(argument);
		return 0;
	}
	error = pthread_create(&thread, NULL, enter, &visit);
	if (error)
		return error;
	pthread_join(thread, NULL);
	return visit.error;
}
