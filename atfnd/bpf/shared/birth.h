/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the birth program and user space share. Times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef ATFND_BIRTH_H
#define ATFND_BIRTH_H

#include <linux/types.h>

enum birth_kind {
	BIRTH_CONNECTING = 1, /* its source port is chosen, its SYN is not sent */
	BIRTH_CONNECTED = 2,  /* its SYN was answered; our ACK is not sent */
	BIRTH_LISTENING = 3,  /* no SYN can have been answered */
	BIRTH_ACCEPTED = 4,   /* the answer to our SYN-ACK came, through napi_id */
	BIRTH_GONE = 5,	  /* a connect or a listener was closed: only at_ns and cookie are set */
	BIRTH_FORKED = 6, /* a process that listens is not alone any more: only at_ns and pid */
};

enum birth_flag {
	BIRTH_DUAL_STACK = 1, /* listens for IPv4 as well */
	BIRTH_ALONE = 2,      /* LISTENING: its process has one thread */
	BIRTH_PINNED = 4,     /* LISTENING: its thread may run on one CPU only */
};

struct birth_event {
	__u64 at_ns;
	__u64 cookie;
	__u64 cgroup;	    /* of the thread, in the hierarchy version 2 */
	__u64 handshake_ns; /* CONNECTED: since CONNECTING */
	__u32 kind;
	__u32 netns;
	__u32 cpu; /* CONNECTING, LISTENING: of the thread, as the next */
	__u32 tid;
	__u32 pid;
	__u32 napi_id;	/* ACCEPTED; 0: not known, or earlier segments may come through another */
	__u8 local[16]; /* network order; 4-aligned: the verifier wants it for word compares */
	__u8 remote[16];
	__u8 comm[16];
	__u16 local_port;
	__u16 remote_port;
	__u8 family; /* 4 or 6; an IPv4-mapped socket is 4 */
	__u8 flags;
	__u32 uid; /* real, of the whole machine */
};

#endif
