/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The hold of one queue, step by step, as methods of type Transit: a spinner (spinner.c) keeps its CPU
 * while another queue drains. One at a time; its end is its own. sched(7).
 */
#define _GNU_SOURCE
#include "py_transit.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>

/* The object with a queue parked (it may have ended by itself), or NULL with an exception set. */
static struct transit_object *holding(PyObject *object)
{
	struct transit_object *self = transit_opened(object);

	if (!self || self->spinner)
		return self;
	PyErr_SetString(PyExc_ValueError, "no queue is parked");
	return NULL;
}

void transit_end_hold(struct transit_object *self)
{
	struct spinner *spinner = self->spinner;

	if (!spinner)
		return;
	self->spinner = NULL;
	Py_BEGIN_ALLOW_THREADS
	spinner_stop(spinner);
	Py_END_ALLOW_THREADS
	free(spinner);
}

static PyObject *start(struct transit_object *self, struct spinner given)
{
	struct spinner *spinner = malloc(sizeof(*spinner));
	int error;

	if (!spinner)
		return PyErr_NoMemory();
	*spinner = given;
	Py_BEGIN_ALLOW_THREADS
	error = spinner_start(spinner);
	Py_END_ALLOW_THREADS
	if (error) {
		free(spinner);
		return ext_oserror(-error, "park a queue");
	}
	self->spinner = spinner;
	return PyLong_FromUnsignedLongLong(spinner->effective_ns);
}

PyObject *transit_park(PyObject *object, PyObject *args)
{
	struct transit_object *self = transit_opened(object);
	struct spinner spinner = { .end = SPINNER_ON };
	unsigned int napi_a, napi_b;
	unsigned long long ready_ns, until_ns;

	if (!self || !PyArg_ParseTuple(args, "IIiiKK", &napi_a, &napi_b, &spinner.cpu,
				       &spinner.priority, &ready_ns, &until_ns))
		return NULL;
	if (self->spinner)
		return ext_oserror(EBUSY, "park a queue");
	if (!self->poll) {
		PyErr_SetString(PyExc_ValueError, "transit is not started");
		return NULL;
	}
	if (spinner.cpu < 0 || spinner.cpu >= CPU_SETSIZE)
		return ext_oserror(EINVAL, "park a queue");
	spinner.a = transit_ring_of(self, napi_a);
	spinner.b = spinner.a ? transit_ring_of(self, napi_b) : NULL;
	if (!spinner.b)
		return NULL;
	spinner.ready_ns = ready_ns;
	spinner.until_ns = until_ns;
	spinner.a_index = spinner.a - self->skeleton->bss->rings;
	spinner.idle_program = bpf_program__fd(self->skeleton->progs.is_idle);
	return start(self, spinner);
}

PyObject *transit_parked(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);

	(void)unused;
	if (!self)
		return NULL;
	return PyBool_FromLong(self->spinner && spinner_holds(self->spinner));
}

PyObject *transit_settle(PyObject *object, PyObject *args)
{
	struct transit_object *self = holding(object);
	unsigned long long after_ns;

	if (!self || !PyArg_ParseTuple(args, "K", &after_ns))
		return NULL;
	spinner_ask(self->spinner, after_ns);
	Py_RETURN_NONE;
}

PyObject *transit_settled(PyObject *object, PyObject *args)
{
	struct transit_object *self = holding(object);
	unsigned long long until_ns;
	int error;

	if (!self || !PyArg_ParseTuple(args, "K", &until_ns))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = spinner_wait(self->spinner, until_ns);
	Py_END_ALLOW_THREADS
	return PyBool_FromLong(!error);
}

PyObject *transit_unpark(PyObject *object, PyObject *unused)
{
	struct transit_object *self = holding(object);
	struct spinner *spinner;
	struct transit_poll ended, drained;
	PyObject *told;

	(void)unused;
	if (!self)
		return NULL;
	spinner = self->spinner;
	self->spinner = NULL;
	Py_BEGIN_ALLOW_THREADS
	spinner_stop(spinner);
	Py_END_ALLOW_THREADS
	ended = spinner->a->ended;
	drained = spinner->a->drained;
	told = Py_BuildValue("(iKKKKKIIKII)", atomic_load(&spinner->end), spinner->effective_ns,
			     spinner->proof_ns, spinner->released_ns, spinner->b_polls,
			     ended.ended_ns, ended.work, ended.budget, drained.ended_ns,
			     drained.work, drained.budget);
	free(spinner);
	return told;
}
