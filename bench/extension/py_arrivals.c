/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Arrivals over the skeleton of arrivals.bpf.c, attached by rtnetlink in the caller's
 * network namespace. A refusal is an OSError with the kernel's errno.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>

#include "arrivals.h"
#include "arrivals.skel.h"

struct arrivals_object {
	PyObject_HEAD
	struct arrivals *skeleton; /* NULL: closed */
};

/* 0, or a negative errno. */
static int start(struct arrivals *skeleton, int ifindex)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = BPF_TC_INGRESS);
	LIBBPF_OPTS(bpf_tc_opts, options, .handle = 1, .priority = 1);
	int error = arrivals__load(skeleton);

	if (error)
		return error;
	error = bpf_tc_hook_create(&hook);
	if (error && error != -EEXIST)
		return error;
	options.prog_fd = bpf_program__fd(skeleton->progs.arrive);
	return bpf_tc_attach(&hook, &options);
}

static PyObject *arrivals_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "ifindex", NULL };
	struct arrivals_object *self;
	int ifindex, error = 0;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &ifindex))
		return NULL;
	self = (struct arrivals_object *)PyType_GenericAlloc(type, 0);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	self->skeleton = arrivals__open();
	error = self->skeleton ? start(self->skeleton, ifindex) : -errno;
	Py_END_ALLOW_THREADS
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, "count the frames that arrive");
}

static PyObject *arrivals_counts(PyObject *object, PyObject *unused)
{
	struct arrivals_object *self = (struct arrivals_object *)object;

	(void)unused;
	if (!self->skeleton)
		return PyErr_Format(PyExc_ValueError, "arrivals are counted no more");
	return Py_BuildValue("KKK", self->skeleton->bss->packets[0],
			     self->skeleton->bss->packets[1], self->skeleton->bss->bytes);
}

static PyObject *arrivals_delays(PyObject *object, PyObject *unused)
{
	struct arrivals_object *self = (struct arrivals_object *)object;

	(void)unused;
	if (!self->skeleton)
		return PyErr_Format(PyExc_ValueError, "arrivals are counted no more");
	return PyBytes_FromStringAndSize((const char *)self->skeleton->bss->delays,
					 sizeof(self->skeleton->bss->delays));
}

static PyObject *arrivals_close(PyObject *object, PyObject *unused)
{
	struct arrivals_object *self = (struct arrivals_object *)object;
	struct arrivals *skeleton = self->skeleton;

	(void)unused;
	self->skeleton = NULL;
	arrivals__destroy(skeleton);
	Py_RETURN_NONE;
}

static void arrivals_dealloc(PyObject *object)
{
	struct arrivals_object *self = (struct arrivals_object *)object;
	PyTypeObject *type = Py_TYPE(object);
	freefunc release = PyType_GetSlot(type, Py_tp_free);

	arrivals__destroy(self->skeleton);
	release(object);
	Py_DECREF(type);
}

static PyMethodDef methods[] = {
	{ "counts", arrivals_counts, METH_NOARGS,
	  "(frames sent at port 0, at port 1, bytes) that have arrived." },
	{ "delays", arrivals_delays, METH_NOARGS, "bytes: a __u64 for each slot of slot_of()." },
	{ "close", arrivals_close, METH_NOARGS,
	  "Free what was counted; the classifier goes with its interface." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Arrivals(ifindex): stamped frames that come in there, taken and counted." },
	{ Py_tp_new, arrivals_new },
	{ Py_tp_dealloc, arrivals_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec arrivals_type = {
	.name = "bench.extension._bench.Arrivals",
	.basicsize = sizeof(struct arrivals_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
