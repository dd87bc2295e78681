/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A thread that keeps a CPU to itself, so that the NAPI thread confined to it does not run.
 */
#ifndef ATFND_SPINNER_H
#define ATFND_SPINNER_H

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "backlogs.h"
#include "transit.h"

enum spinner_end {
	SPINNER_ON,	  /* not yet */
	SPINNER_DRAINED,  /* every ring A has delivered all it held at the question's time */
	SPINNER_IDLE,	  /* the same; each was empty and its NAPI asleep after it */
	SPINNER_EXPIRED,  /* the limit was reached first */
	SPINNER_RELEASED, /* we ended it */
};

/* A ring A that must deliver, and the proof that it did. */
struct spinner_old {
	struct transit_ring *ring;
	__u32 index;
	int end; /* SPINNER_DRAINED or SPINNER_IDLE; SPINNER_ON: not proven */
	__u64 proof_ns;
};

struct spinner {
	int cpu;
	int priority;	/* SCHED_FIFO */
	__u64 ready_ns; /* CLOCK_MONOTONIC: by then each A was seen to deliver, or it stands still */
	__u64 until_ns; /* it ends then, whatever happened to us */
	struct spinner_old old[TRANSIT_RINGS];
	int olds;
	struct transit_ring *b;
	int idle_program; /* descriptor of is_idle() */
	struct backlogs backlogs;

	pthread_t thread;
	sem_t changed;	     /* posted when `delivers` and when `end` is set */
	atomic_int delivers; /* each A was drained under the hold: now is the time to write */
	atomic_int released;
	atomic_int hands_on;	/* what the rings A deliver may wait in backlogs of CPUs */
	atomic_ullong question; /* copy of every A's after_ns for this spinner alone */
	atomic_int end; /* enum spinner_end; read the rest once it is no longer SPINNER_ON */
	__u64 effective_ns;
	__u64 released_ns;
	__u64 marked_ns; /* when the rings A were proven drained and the backlogs read; 0: never */
	__u64 b_before;	 /* ends of polls of B before it */
	__u64 b_polls;	 /* ends of a poll of B seen while it was held: it was not */
};

/* Starts it and waits until it has its CPU and each A is seen to deliver: 0, or a negative errno, and it is
 * gone: -EPERM (no SCHED_FIFO for us), -EINVAL (no such CPU), -ETIMEDOUT (others keep the CPU),
 * -EAGAIN (an A stands still: the first whose `end` is SPINNER_ON). `effective_ns` is set. */
int spinner_start(struct spinner *spinner);

/* It has had its CPU since it began (B was not polled), and its limit is not reached. */
int spinner_holds(struct spinner *spinner);

/* From now on: is all delivered that is in the rings A at `after_ns`? If so, the spinner ends.
 * `hands_on`: they hand packets to backlogs (RFS), which then have to deliver, too. */
void spinner_ask(struct spinner *spinner, __u64 after_ns, int hands_on);

/* Waits for its end: 0, or -ETIMEDOUT. */
int spinner_wait(struct spinner *spinner, __u64 until_ns);

/* Ends it, if it has not ended. */
void spinner_stop(struct spinner *spinner);

#endif
