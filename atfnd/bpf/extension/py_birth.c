/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Birth over the skeleton of birth.bpf.c: connects and listeners as they happen. bpf(2); a
 * refusal is an OSError with the kernel's errno. The events are those of birth.h.
 */
#include "events.h"

#include <bpf/bpf.h>
#include <errno.h>

#include "birth.h"
#include "birth.skel.h"

struct birth_object {
	struct events events;
	struct birth *skeleton;
	struct bpf_link *births, *ends, *forks; /* while attached */
};

static int attach(struct events *events, int cgroup)
{
	struct birth_object *self = (struct birth_object *)events;

	self->ends = bpf_program__attach(self->skeleton->progs.on_state);
	if (self->ends)
		self->forks = bpf_program__attach(self->skeleton->progs.on_fork);
	if (self->forks)
		self->births = bpf_program__attach_cgroup(self->skeleton->progs.on_birth, cgroup);
	return self->births ? 0 : -errno;
}

static void detach(struct events *events)
{
	struct birth_object *self = (struct birth_object *)events;

	bpf_link__destroy(self->births);
	bpf_link__destroy(self->ends);
	bpf_link__destroy(self->forks);
	self->births = self->ends = self->forks = NULL;
}

static void release(struct events *events)
{
	struct birth_object *self = (struct birth_object *)events;

	detach(events);
	birth__destroy(self->skeleton);
	self->skeleton = NULL;
}

static const struct events_kind kind = {
	.name = "birth",
	.record_bytes = sizeof(struct birth_event),
	.attach = attach,
	.detach = detach,
	.release = release,
};

static int load(struct birth_object *self, unsigned int bytes)
{
	int error;

	self->skeleton = birth__open();
	if (!self->skeleton)
		return -errno;
	error = bpf_map__set_max_entries(self->skeleton->maps.events, bytes);
	if (!error)
		error = birth__load(self->skeleton);
	return error ? error
		     : events_open(&self->events, self->skeleton->obj, "events",
				   &self->skeleton->bss->lost);
}

static PyObject *birth_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "bytes", NULL };
	struct birth_object *self;
	unsigned int bytes = 1 << 20;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|I", names, &bytes))
		return NULL;
	self = (struct birth_object *)events_new(type, &kind);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = load(self, bytes);
	Py_END_ALLOW_THREADS
	return events_made(&self->events, error, "load the birth programs");
}

const void *birth_program(size_t *size)
{
	return birth__elf_bytes(size);
}

static PyMethodDef birth_methods[] = {
	EVENTS_START, EVENTS_MAP,   EVENTS_FILENO,	     EVENTS_LOST,
	EVENTS_DRAIN, EVENTS_CLOSE, { NULL, NULL, 0, NULL },
};

static PyType_Slot birth_slots[] = {
	{ Py_tp_doc,
	  "Birth(bytes=1 MiB): connects and listeners; so large a ring buffer (a power of two)." },
	{ Py_tp_new, birth_new },
	{ Py_tp_dealloc, events_dealloc },
	{ Py_tp_methods, birth_methods },
	{ 0, NULL },
};

PyType_Spec birth_type = {
	.name = "atfnd.bpf._bpf.Birth",
	.basicsize = sizeof(struct birth_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = birth_slots,
};
