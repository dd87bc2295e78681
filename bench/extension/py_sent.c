/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Sent over the skeleton of sent.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. Totals are returned as bytes in the layout of sent.h.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "sent.h"
#include "sent.skel.h"
#include "totals.h"

struct sent_object {
	PyObject_HEAD
	struct sent *skeleton; /* NULL: closed */
};

/* With the classifier's maps in place of its own. 0, or a negative errno. */
static int start(struct sent *skeleton, int filters, int locations)
{
	int error = bpf_map__reuse_fd(skeleton->maps.filters, filters);

	error = error ?: bpf_map__reuse_fd(skeleton->maps.locations, locations);
	error = error ?: sent__load(skeleton);
	return error ?: sent__attach(skeleton);
}

static PyObject *sent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {
		"netns", "ifindex", "filters", "locations", "mask", "queues", NULL
	};
	unsigned int netns, ifindex, mask;
	int filters, locations, error;
	struct sent_object *self;
	Py_buffer queues;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IIiiIy*", names, &netns, &ifindex, &filters,
					 &locations, &mask, &queues))
		return NULL;
	self = (struct sent_object *)PyType_GenericAlloc(type, 0);
	if (self)
		self->skeleton = sent__open();
	error = self && !self->skeleton ? -errno : 0;
	if (self && !error && queues.len != sizeof(self->skeleton->rodata->queue_of))
		error = -EINVAL;
	if (self && !error) {
		self->skeleton->rodata->netns = netns;
		self->skeleton->rodata->ifindex = ifindex;
		self->skeleton->rodata->mask = mask;
		memcpy((void *)self->skeleton->rodata->queue_of, queues.buf, queues.len);
		error = start(self->skeleton, filters, locations);
	}
	PyBuffer_Release(&queues);
	if (!self || !error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, "steer by transmitted packets");
}

static PyObject *sent_totals(PyObject *object, PyObject *unused)
{
	struct sent_object *self = (struct sent_object *)object;

	(void)unused;
	if (!self->skeleton)
		return PyErr_Format(PyExc_ValueError, "it steers no more");
	return ext_totals(self->skeleton->maps.totals, sizeof(struct sent_totals),
			  "read what was moved");
}

static PyObject *sent_close(PyObject *object, PyObject *unused)
{
	struct sent_object *self = (struct sent_object *)object;
	struct sent *skeleton = self->skeleton;

	(void)unused;
	self->skeleton = NULL;
	Py_BEGIN_ALLOW_THREADS
	sent__destroy(skeleton);
	Py_END_ALLOW_THREADS
	Py_RETURN_NONE;
}

static void sent_dealloc(PyObject *object)
{
	struct sent_object *self = (struct sent_object *)object;
	PyTypeObject *type = Py_TYPE(object);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	sent__destroy(self->skeleton);
	release(object);
	Py_DECREF(type);
}

const void *sent_program(size_t *size)
{
	return sent__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "totals", sent_totals, METH_NOARGS, "bytes: struct sent_totals, one a possible CPU." },
	{ "close", sent_close, METH_NOARGS, "Detach and free; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc,
	  "Sent(netns, ifindex, filters, locations, mask, queues): what this device transmits "
	  "moves the filters of its flows, from now on." },
	{ Py_tp_new, sent_new },
	{ Py_tp_dealloc, sent_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec sent_type = {
	.name = "bench.extension._bench.Sent",
	.basicsize = sizeof(struct sent_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
