/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * A Python object over a loaded BPF object that sends records of one size up a ring buffer. Each type
 * of this kind begins with it and has its methods.
 */
#ifndef ATFND_EVENTS_H
#define ATFND_EVENTS_H

#include "ext.h"

#include <bpf/libbpf.h>
#include <linux/types.h>

#include "buffer.h"

struct events;

struct events_kind {
	const char *name; /* in messages: "the observer" */
	size_t record_bytes;
	size_t most; /* records that one drain takes; 0: all that wait */
	/* Of a type with EVENTS_START: attach to the sockets of a cgroup, 0 or a negative errno, and
	 * detach all, also what a failed attach has left. Run without the GIL. */
	int (*attach)(struct events *self, int cgroup);
	void (*detach)(struct events *self);
	/* Detaches and unloads all there is, after a failed load too. Runs without the GIL. */
	void (*release)(struct events *self);
};

struct events {
	PyObject_HEAD
	const struct events_kind *kind;
	struct ring_buffer *ring;  /* NULL: closed */
	const __u64 *lost;	   /* in memory that BPF writes */
	struct bpf_object *object; /* of its maps */
	int attached;		   /* by `start` */
	struct buffer drained;	   /* kept between calls */
	int busy;
};

/* A new object, closed as yet; NULL with an exception set. */
struct events *events_new(PyTypeObject *type, const struct events_kind *kind);

/* Reads the ring buffer of this name from now on: 0 or a negative errno. */
int events_open(struct events *self, struct bpf_object *object, const char *ring,
		const __u64 *lost);

/* The object if `error` is 0, else NULL with OSError(-error, what) set. */
PyObject *events_made(struct events *self, int error, const char *what);

/* The open object; NULL with RuntimeError (busy) or ValueError (closed) set. */
void *events_opened(PyObject *object);

void events_dealloc(PyObject *object);
PyObject *events_start(PyObject *object, PyObject *args);
PyObject *events_map(PyObject *object, PyObject *args);
PyObject *events_fileno(PyObject *object, PyObject *unused);
PyObject *events_lost(PyObject *object, PyObject *unused);
PyObject *events_drain(PyObject *object, PyObject *unused);
PyObject *events_close(PyObject *object, PyObject *unused);

/* For a type's table. EVENTS_START wants `attach` and `detach` of its kind, EVENTS_LOST
 * wants `lost` to be given to events_open(). */
#define EVENTS_START                                                                               \
	{ "start", events_start, METH_VARARGS, "start(cgroup): attach to its sockets." }
#define EVENTS_MAP { "map", events_map, METH_VARARGS, "map(name): descriptor of a map." }
#define EVENTS_FILENO { "fileno", events_fileno, METH_NOARGS, "Readable when records wait." }
#define EVENTS_LOST { "lost", events_lost, METH_NOARGS, "Records that found the ring buffer full." }
#define EVENTS_DRAIN { "drain", events_drain, METH_NOARGS, "The records that wait, packed." }
#define EVENTS_CLOSE { "close", events_close, METH_NOARGS, "Detach and free the maps." }

#endif
