/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Transit is in three files: flows and events in py_transit.c, rings in py_rings.c, the hold
 * of a queue in py_hold.c.
 */
#ifndef ATFND_PY_TRANSIT_H
#define ATFND_PY_TRANSIT_H

#include "events.h"
#include "spinner.h"
#include "transit.h"
#include "transit.skel.h"

#define TRANSIT_HOLDS 2 /* RSS's queue and the new one, where a rule is deleted and added */

struct transit_object {
	struct events events;
	struct transit *skeleton;
	struct bpf_link *delivery, *poll;	 /* while attached */
	struct spinner *spinners[TRANSIT_HOLDS]; /* of queues that are quiesced */
	struct backlogs backlogs;		 /* as last marked by user space */
};

/* The ring of a queue that is watched, or NULL with an exception set. */
struct transit_ring *transit_ring_of(struct transit_object *self, unsigned int napi_id);

/* Is a queue quiesced? By a hold that this ring is part of, if one is given. */
int transit_in_hold(const struct transit_object *self, const struct transit_ring *ring);

/* Ends every hold; without the GIL. */
void transit_end_holds(struct transit_object *self);

PyObject *transit_watch(PyObject *object, PyObject *args);
PyObject *transit_unwatch(PyObject *object, PyObject *args);
PyObject *transit_ask(PyObject *object, PyObject *args);
PyObject *transit_answer(PyObject *object, PyObject *args);
PyObject *transit_polled(PyObject *object, PyObject *args);
PyObject *transit_served(PyObject *object, PyObject *args);
PyObject *transit_idle(PyObject *object, PyObject *args);

PyObject *transit_backlog_known(PyObject *object, PyObject *args);
PyObject *transit_mark_backlogs(PyObject *object, PyObject *unused);
PyObject *transit_backlogs_passed(PyObject *object, PyObject *unused);

PyObject *transit_quiesce(PyObject *object, PyObject *args);
PyObject *transit_quiesced(PyObject *object, PyObject *args);
PyObject *transit_settle(PyObject *object, PyObject *args);
PyObject *transit_settled(PyObject *object, PyObject *args);
PyObject *transit_resume(PyObject *object, PyObject *args);

#endif
