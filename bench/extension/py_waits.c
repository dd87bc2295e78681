/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Waits over the skeleton of waits.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. Totals are returned as bytes in the layout of waits.h.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <errno.h>

#include "waits.h"
#include "waits.skel.h"
#include "totals.h"

struct waits_object {
	PyObject_HEAD
	struct waits *skeleton; /* NULL: closed */
};

static PyObject *waits_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "netns", NULL };
	struct waits_object *self;
	unsigned int netns;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I", names, &netns))
		return NULL;
	self = (struct waits_object *)PyType_GenericAlloc(type, 0);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	self->skeleton = waits__open();
	error = self->skeleton ? 0 : -errno;
	if (!error) {
		self->skeleton->rodata->netns = netns;
		error = waits__load(self->skeleton);
	}
	if (!error)
		error = waits__attach(self->skeleton);
	Py_END_ALLOW_THREADS
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, "time waits for spinlocks");
}

static PyObject *waits_totals(PyObject *object, PyObject *unused)
{
	struct waits_object *self = (struct waits_object *)object;

	(void)unused;
	if (!self->skeleton)
		return PyErr_Format(PyExc_ValueError, "the timer of waits is closed");
	return ext_totals(self->skeleton->maps.totals, sizeof(struct waits_totals),
			  "read what was waited");
}

static PyObject *waits_close(PyObject *object, PyObject *unused)
{
	struct waits_object *self = (struct waits_object *)object;
	struct waits *skeleton = self->skeleton;

	(void)unused;
	self->skeleton = NULL;
	Py_BEGIN_ALLOW_THREADS
	waits__destroy(skeleton);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static void waits_dealloc(PyObject *object)
{
	struct waits_object *self = (struct waits_object *)object;
	PyTypeObject *type = Py_TYPE(object);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	waits__destroy(self->skeleton);
	release(object);
	Py_DECREF(type);
}

const void *waits_program(size_t *size)
{
	return waits__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "totals", waits_totals, METH_NOARGS, "bytes: struct waits_totals, one a possible CPU." },
	{ "close", waits_close, METH_NOARGS, "Detach and free; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Waits(netns): waits for the locks of its TCP sockets, counted from now on." },
	{ Py_tp_new, waits_new },
	{ Py_tp_dealloc, waits_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec waits_type = {
	.name = "bench.extension._bench.Waits",
	.basicsize = sizeof(struct waits_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
