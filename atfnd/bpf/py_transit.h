/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Transit is in two files: flows and events in py_transit.c, rings and the hold in
 * py_rings.c.
 */
#ifndef ATFND_PY_TRANSIT_H
#define ATFND_PY_TRANSIT_H

#include "ext.h"

#include <bpf/libbpf.h>

#include "buffer.h"
#include "transit.h"
#include "transit.skel.h"

struct transit_object {
	PyObject_HEAD
	struct transit *skeleton;
	struct bpf_link *delivery, *poll; /* while started */
	struct ring_buffer *ring;
	struct buffer drained; /* kept between calls */
};

/* The open object, or NULL with an exception set. */
struct transit_object *transit_opened(PyObject *object);

PyObject *transit_watch(PyObject *object, PyObject *args);
PyObject *transit_unwatch(PyObject *object, PyObject *args);
PyObject *transit_ask(PyObject *object, PyObject *args);
PyObject *transit_answer(PyObject *object, PyObject *args);
PyObject *transit_idle(PyObject *object, PyObject *args);
PyObject *transit_hold(PyObject *object, PyObject *args);

#endif
