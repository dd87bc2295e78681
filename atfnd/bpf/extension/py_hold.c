/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The hold of a queue, step by step, as methods of type Transit: a spinner (spinner.c) keeps its CPU
 * while other queues drain; its end is its own. TRANSIT_HOLDS at a time. sched(7).
 */
#define _GNU_SOURCE
#include "py_transit.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

/* The place of the hold of this queue (0: a place that is free), or NULL. */
static struct spinner **find_place(struct transit_object *self, unsigned int napi_b)
{
	for (int i = 0; i < TRANSIT_HOLDS; i++) {
		struct spinner *spinner = self->spinners[i];

		if (spinner ? spinner->b->napi_id == napi_b : !napi_b)
			return &self->spinners[i];
	}
	return NULL;
}

/* The place of a queue that is quiesced (it may have ended by itself), or NULL with an exception set. */
static struct spinner **place_of(struct transit_object *self, unsigned int napi_b)
{
	struct spinner **place = napi_b ? find_place(self, napi_b) : NULL;

	if (!place)
		PyErr_Format(PyExc_ValueError, "NAPI %u is not quiesced", napi_b);
	return place;
}

int transit_in_hold(const struct transit_object *self, const struct transit_ring *ring)
{
	for (int i = 0; i < TRANSIT_HOLDS; i++) {
		const struct spinner *spinner = self->spinners[i];

		if (spinner && (!ring || ring == spinner->b))
			return 1;
		for (int old = 0; spinner && old < spinner->olds; old++)
			if (ring == spinner->old[old].ring)
				return 1;
	}
	return 0;
}

void transit_end_holds(struct transit_object *self)
{
	for (int i = 0; i < TRANSIT_HOLDS; i++) {
		if (!self->spinners[i])
			continue;
		spinner_stop(self->spinners[i]);
		free(self->spinners[i]);
		self->spinners[i] = NULL;
	}
}

static PyObject *start(struct transit_object *self, struct spinner **place, struct spinner given)
{
	struct spinner *spinner = malloc(sizeof(*spinner));
	int error;

	if (!spinner)
		return PyErr_NoMemory();
	*spinner = given;
	EXT_BEGIN_BUSY(&self->events)
	error = spinner_start(spinner);
	EXT_END_BUSY(&self->events)
	if (error) {
		free(spinner);
		return ext_oserror(-error, "quiesce a queue");
	}
	*place = spinner;
	return PyLong_FromUnsignedLongLong(spinner->effective_ns);
}

/* The queues A of a hold, from a tuple of their NAPI ids. 0, or -1 with an exception set. */
static int take_olds(struct transit_object *self, struct spinner *spinner, PyObject *napis)
{
	Py_ssize_t count = PyTuple_Size(napis);

	if (count > TRANSIT_RINGS) {
		PyErr_SetString(PyExc_ValueError, "too many queues drain");
		return -1;
	}
	for (Py_ssize_t i = 0; i < count; i++) {
		unsigned long napi_id = PyLong_AsUnsignedLong(PyTuple_GetItem(napis, i));
		struct spinner_old *old = &spinner->old[i];

		if (PyErr_Occurred())
			return -1;
		old->ring = transit_ring_of(self, napi_id);
		if (!old->ring)
			return -1;
		old->index = old->ring - self->skeleton->bss->rings;
	}
	spinner->olds = count;
	return 0;
}

PyObject *transit_quiesce(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	struct spinner spinner = { .end = SPINNER_ON };
	unsigned int napi_b;
	PyObject *napis_a;
	unsigned long long ready_ns, until_ns;
	struct spinner **place;

	if (!self || !PyArg_ParseTuple(args, "O!IiiKK", &PyTuple_Type, &napis_a, &napi_b,
				       &spinner.cpu, &spinner.priority, &ready_ns, &until_ns))
		return NULL;
	place = find_place(self, 0);
	if (!place || (napi_b && find_place(self, napi_b)))
		return ext_oserror(EBUSY, "quiesce a queue");
	if (!self->events.attached) {
		PyErr_SetString(PyExc_ValueError, "transit is not started");
		return NULL;
	}
	if (spinner.cpu < 0 || spinner.cpu >= CPU_SETSIZE)
		return ext_oserror(EINVAL, "quiesce a queue");
	if (take_olds(self, &spinner, napis_a))
		return NULL;
	spinner.b = transit_ring_of(self, napi_b);
	if (!spinner.b)
		return NULL;
	spinner.ready_ns = ready_ns;
	spinner.until_ns = until_ns;
	spinner.idle_program = bpf_program__fd(self->skeleton->progs.is_idle);
	spinner.backlogs.program = self->backlogs.program;
	spinner.backlogs.cpus = self->backlogs.cpus;
	return start(self, place, spinner);
}

PyObject *transit_quiesced(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	struct spinner **place;
	unsigned int napi_b;

	if (!self || !PyArg_ParseTuple(args, "I", &napi_b))
		return NULL;
	place = napi_b ? find_place(self, napi_b) : NULL;
	return PyBool_FromLong(place && spinner_holds(*place));
}

PyObject *transit_settle(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	struct spinner **place;
	unsigned int napi_b;
	unsigned long long after_ns;
	int hands_on;

	if (!self || !PyArg_ParseTuple(args, "IKp", &napi_b, &after_ns, &hands_on))
		return NULL;
	place = place_of(self, napi_b);
	if (!place)
		return NULL;
	spinner_ask(*place, after_ns, hands_on);
	Py_RETURN_NONE;
}

PyObject *transit_settled(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	struct spinner **place;
	unsigned int napi_b;
	unsigned long long until_ns;
	int error;

	if (!self || !PyArg_ParseTuple(args, "IK", &napi_b, &until_ns))
		return NULL;
	place = place_of(self, napi_b);
	if (!place)
		return NULL;
	EXT_BEGIN_BUSY(&self->events)
	error = spinner_wait(*place, until_ns);
	EXT_END_BUSY(&self->events)
	return PyBool_FromLong(!error);
}

/* What each queue A did: (end, when, and the ends of two polls). NULL with an exception set. */
static PyObject *old_results(const struct spinner *spinner)
{
	PyObject *all = PyTuple_New(spinner->olds);

	for (int i = 0; all && i < spinner->olds; i++) {
		const struct spinner_old *old = &spinner->old[i];
		struct transit_poll ended = old->ring->ended, drained = old->ring->drained;
		PyObject *one = Py_BuildValue("(iKKIIKII)", old->end, old->proof_ns, ended.ended_ns,
					      ended.work, ended.budget, drained.ended_ns,
					      drained.work, drained.budget);

		if (!one || PyTuple_SetItem(all, i, one)) {
			Py_DECREF(all);
			return NULL;
		}
	}
	return all;
}

PyObject *transit_resume(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	struct spinner **place, *spinner;
	unsigned int napi_b;
	PyObject *result, *olds;

	if (!self || !PyArg_ParseTuple(args, "I", &napi_b))
		return NULL;
	place = place_of(self, napi_b);
	if (!place)
		return NULL;
	spinner = *place;
	*place = NULL;
	EXT_BEGIN_BUSY(&self->events)
	spinner_stop(spinner);
	EXT_END_BUSY(&self->events)
	/* It reads rings, and Python's garbage collection can let another thread in. */
	self->events.busy = 1;
	olds = old_results(spinner);
	self->events.busy = 0;
	result = !olds ? NULL
		       : Py_BuildValue("(iKKKKN)", atomic_load(&spinner->end),
				       spinner->effective_ns, spinner->released_ns,
				       spinner->marked_ns, spinner->b_polls, olds);
	free(spinner);
	return result;
}
