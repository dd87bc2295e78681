/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Pollers over the skeleton of pollers.bpf.c. bpf(2); a refusal is an OSError with the
 * kernel's errno. Totals are returned as bytes in the layout of pollers.h.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "pollers.h"
#include "pollers.skel.h"

struct pollers_object {
	PyObject_HEAD
	struct pollers *skeleton; /* NULL: closed */
};

/* 0, or a negative errno. */
static int start(struct pollers *skeleton, const __u32 *pids, size_t count)
{
	int error = pollers__load(skeleton);
	size_t each = bpf_map__value_size(skeleton->maps.threads);
	char fresh[each];

	memset(fresh, 0, each);
	for (size_t at = 0; !error && at < count; at++)
		error = bpf_map__update_elem(skeleton->maps.threads, &pids[at], sizeof(pids[at]),
					     fresh, each, BPF_ANY);
	return error ?: pollers__attach(skeleton);
}

static PyObject *pollers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "pids", NULL };
	struct pollers_object *self;
	Py_buffer pids;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*", names, &pids))
		return NULL;
	self = (struct pollers_object *)PyType_GenericAlloc(type, 0);
	if (self) {
		Py_BEGIN_ALLOW_THREADS
		self->skeleton = pollers__open();
		error = self->skeleton ? start(self->skeleton, pids.buf, pids.len / sizeof(__u32))
				       : -errno;
		Py_END_ALLOW_THREADS
	} else {
		error = 0;
	}
	PyBuffer_Release(&pids);
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, "time NAPI threads");
}

static PyObject *pollers_totals(PyObject *object, PyObject *args)
{
	struct pollers_object *self = (struct pollers_object *)object;
	__u32 pid;

	if (!PyArg_ParseTuple(args, "I", &pid))
		return NULL;
	if (!self->skeleton)
		return PyErr_Format(PyExc_ValueError, "the timer of NAPI threads is closed");

	size_t each = bpf_map__value_size(self->skeleton->maps.threads);
	char value[each];
	int error = bpf_map__lookup_elem(self->skeleton->maps.threads, &pid, sizeof(pid), value,
					 each, 0);

	if (error)
		return ext_oserror(-error, "read what a NAPI thread did");
	return PyBytes_FromStringAndSize(value, sizeof(struct poller_totals));
}

static PyObject *pollers_close(PyObject *object, PyObject *unused)
{
	struct pollers_object *self = (struct pollers_object *)object;
	struct pollers *skeleton = self->skeleton;

	(void)unused;
	self->skeleton = NULL;
	Py_BEGIN_ALLOW_THREADS
	pollers__destroy(skeleton);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static void pollers_dealloc(PyObject *object)
{
	struct pollers_object *self = (struct pollers_object *)object;
	PyTypeObject *type = Py_TYPE(object);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	pollers__destroy(self->skeleton);
	release(object);
	Py_DECREF(type);
}

const void *pollers_program(size_t *size)
{
	return pollers__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "totals", pollers_totals, METH_VARARGS, "bytes: struct poller_totals of a thread." },
	{ "close", pollers_close, METH_NOARGS, "Detach and free; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Pollers(pids): NAPI threads (__u32 each), timed from now on." },
	{ Py_tp_new, pollers_new },
	{ Py_tp_dealloc, pollers_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec pollers_type = {
	.name = "bench.extension._bench.Pollers",
	.basicsize = sizeof(struct pollers_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
