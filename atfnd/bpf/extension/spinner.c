/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A thread of SCHED_FIFO above the NAPI thread's priority, confined to the same CPU, that spins until
 * the other rings are drained or its limit is reached. It is its own clock and its own judge: what ends
 * a hold is in memory that BPF writes, so no other thread and no Python is between the evidence and
 * the release. When the process dies, so does the spinner, and the NAPI thread runs.
 *
 * Running is the proof that the hold is effective: napi_threaded_poll_loop() (net/core/dev.c) polls
 * with softirqs disabled, which no task preempts, so a NAPI thread whose CPU runs this one is not in
 * a poll; with PREEMPT_RT it may be in the middle of one and stays there.
 */
#define _GNU_SOURCE
#include "spinner.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

#define SECOND_NS 1000000000ULL
#define END_NS 1000000ULL /* to notice that it must end, with its CPU */

static __u64 now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	return (__u64)at.tv_sec * SECOND_NS + (__u64)at.tv_nsec;
}

static int idle(const struct spinner *spinner, __u32 index)
{
	LIBBPF_OPTS(bpf_test_run_opts, run, .ctx_in = &index, .ctx_size_in = sizeof(index));

	return !bpf_prog_test_run_opts(spinner->idle_program, &run) && run.retval == 1;
}

/* Looks at the rings that are not proven yet: are they all now? A ring that is idle may have been
 * drained since it was looked at: then the ends of its polls are the proof.
 */
static enum spinner_end proven(struct spinner *spinner, __u64 question, __u64 now)
{
	enum spinner_end end = SPINNER_IDLE;

	for (int i = 0; i < spinner->olds; i++) {
		struct spinner_old *old = &spinner->old[i];
		const volatile struct transit_ring *ring = old->ring;

		if (old->end == SPINNER_ON) {
			if (ring->drained_after != question && now > question &&
			    idle(spinner, old->index))
				old->end = SPINNER_IDLE;
			if (ring->drained_after == question)
				old->end = SPINNER_DRAINED;
			old->proof_ns = now;
		}
		if (old->end == SPINNER_ON)
			end = SPINNER_ON;
		else if (end != SPINNER_ON && old->end == SPINNER_DRAINED)
			end = SPINNER_DRAINED;
	}
	return end;
}

/* The rings A are drained: what they gave to the backlogs of CPUs has still to be delivered. The first
 * call marks how far they are, so that what comes later is not waited for. */
static int handed_on(struct spinner *spinner)
{
	__u64 now = now_ns();

	if (!atomic_load(&spinner->hands_on))
		return 1;
	if (!spinner->marked_ns && backlogs_mark(&spinner->backlogs))
		return 0;
	if (!spinner->marked_ns)
		spinner->marked_ns = now;
	return backlogs_passed(&spinner->backlogs);
}

/* Until each ring A has delivered all it held at the question's time, and the backlogs what they got of
 * it. */
static enum spinner_end spin(struct spinner *spinner)
{
	for (int i = 0; i < spinner->olds; i++)
		spinner->old[i].end = SPINNER_ON;
	for (;;) {
		__u64 now = now_ns(), question = atomic_load(&spinner->question);
		enum spinner_end end = question ? proven(spinner, question, now) : SPINNER_ON;

		if (atomic_load(&spinner->released))
			return SPINNER_RELEASED;
		if (end != SPINNER_ON && handed_on(spinner))
			return end;
		if (now >= spinner->until_ns)
			return SPINNER_EXPIRED;
	}
}

/* Twice: nothing is written while an A stands still, and then what they hold is waited for. */
static void *hold(void *argument)
{
	struct spinner *spinner = argument;
	const volatile struct transit_ring *b = spinner->b;
	enum spinner_end end;

	spinner->b_before = b->polls;
	spinner->effective_ns = now_ns();
	spinner_ask(spinner, spinner->effective_ns, 0);
	end = spin(spinner);
	if (end == SPINNER_DRAINED || end == SPINNER_IDLE) {
		atomic_store(&spinner->question, 0);
		atomic_store(&spinner->delivers, 1);
		sem_post(&spinner->changed);
		end = spin(spinner);
	}
	spinner->b_polls = b->polls - spinner->b_before;
	spinner->released_ns = now_ns();
	atomic_store(&spinner->end, end);
	sem_post(&spinner->changed);
	return NULL;
}

static int create(struct spinner *spinner)
{
	struct sched_param param = { .sched_priority = spinner->priority };
	pthread_attr_t attributes;
	sigset_t all, before;
	cpu_set_t cpus;
	int error;

	CPU_ZERO(&cpus);
	CPU_SET(spinner->cpu, &cpus);
	error = pthread_attr_init(&attributes);
	if (error)
		return -error;
	pthread_attr_setinheritsched(&attributes, PTHREAD_EXPLICIT_SCHED);
	pthread_attr_setschedpolicy(&attributes, SCHED_FIFO);
	pthread_attr_setschedparam(&attributes, &param);
	pthread_attr_setaffinity_np(&attributes, sizeof(cpus), &cpus);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(&spinner->thread, &attributes, hold, spinner);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attributes);
	return -error;
}

/* Asleep, so that a ring A can be polled where we run. -ETIMEDOUT: there was no change until then. */
static int wait_changed(struct spinner *spinner, __u64 until_ns)
{
	struct timespec until = { .tv_sec = until_ns / SECOND_NS, .tv_nsec = until_ns % SECOND_NS };
	int failed;

	do
		failed = sem_clockwait(&spinner->changed, CLOCK_MONOTONIC, &until);
	while (failed && errno == EINTR);
	return failed ? -errno : 0;
}

int spinner_wait(struct spinner *spinner, __u64 until_ns)
{
	int error = 0;

	while (!error && atomic_load(&spinner->end) == SPINNER_ON)
		error = wait_changed(spinner, until_ns);
	return atomic_load(&spinner->end) == SPINNER_ON ? error : 0;
}

static int b_polled(const struct spinner *spinner)
{
	const volatile struct transit_ring *b = spinner->b;

	return b->polls != spinner->b_before;
}

int spinner_holds(struct spinner *spinner)
{
	return atomic_load(&spinner->end) == SPINNER_ON && now_ns() < spinner->until_ns &&
	       !b_polled(spinner);
}

int spinner_start(struct spinner *spinner)
{
	int error;

	if (sem_init(&spinner->changed, 0, 0))
		return -errno;
	error = create(spinner);
	if (error) {
		sem_destroy(&spinner->changed);
		return error;
	}
	wait_changed(spinner, spinner->ready_ns);
	if (atomic_load(&spinner->delivers) && spinner_holds(spinner))
		return 0;
	spinner_stop(spinner);
	if (b_polled(spinner) || spinner->effective_ns >= spinner->ready_ns)
		return -ETIMEDOUT;
	return -EAGAIN;
}

void spinner_ask(struct spinner *spinner, __u64 after_ns, int hands_on)
{
	atomic_store(&spinner->hands_on, hands_on);
	for (int i = 0; i < spinner->olds; i++)
		__atomic_store_n(&spinner->old[i].ring->after_ns, after_ns, __ATOMIC_SEQ_CST);
	atomic_store(&spinner->question, after_ns);
}

void spinner_stop(struct spinner *spinner)
{
	cpu_set_t cpus;

	atomic_store(&spinner->released, 1);
	if (spinner_wait(spinner, now_ns() + END_NS) && !sched_getaffinity(0, sizeof(cpus), &cpus))
		/* others keep its CPU */
		pthread_setaffinity_np(spinner->thread, sizeof(cpus), &cpus);
	pthread_join(spinner->thread, NULL);
	sem_destroy(&spinner->changed);
}
