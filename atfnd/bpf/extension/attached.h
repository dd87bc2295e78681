/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Objects over a skeleton of bpftool whose programs are attached from their making to their close.
 */
#ifndef ATFND_ATTACHED_H
#define ATFND_ATTACHED_H

#include "ext.h"

#include <bpf/libbpf.h>

/* What one type does. A skeleton is a `void *` here: each has a type of its own. */
struct attached_kind {
	const char *what; /* is refused, in an OSError */
	/* Opens, loads and attaches, without the GIL; `given` is that of attached_new(). What it has
	 * opened is destroyed if it fails. 0, or a negative errno. */
	int (*start)(void **skeleton, const void *given);
	void (*destroy)(void *skeleton); /* takes NULL */
};

struct attached_object {
	PyObject_HEAD
	const struct attached_kind *kind;
	void *skeleton; /* NULL: closed */
	int busy;
};

/* A started object, or NULL with OSError set. */
PyObject *attached_new(PyTypeObject *type, const struct attached_kind *kind, const void *given);

/* Its skeleton, or NULL with an exception set: closed, or busy in another thread. */
void *attached_skeleton(PyObject *object);

/* The method `close`. */
PyObject *attached_close(PyObject *object, PyObject *unused);

/* Py_tp_dealloc. */
void attached_dealloc(PyObject *object);

/* Of the only element of a per-CPU array, bytes: one value of `each` bytes a possible CPU. OSError:
 * the kernel's, in trying to do `what`. */
PyObject *attached_totals(const struct bpf_map *map, size_t each, const char *what);

#endif
