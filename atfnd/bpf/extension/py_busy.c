/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Busy over the skeleton of busy.bpf.c.
 */
#include "attached.h"

#include <errno.h>

#include "busy.h"
#include "busy.skel.h"

static int start(void **skeleton, const void *given)
{
	struct busy *made = *skeleton = busy__open();
	int error = made ? busy__load(made) : -errno;

	(void)given;
	return error ?: busy__attach(made);
}

static void destroy(void *skeleton)
{
	busy__destroy(skeleton);
}

static PyObject *busy_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "measure how busy CPUs are", start, destroy };
	static char *names[] = { NULL };

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names))
		return NULL;
	return attached_new(type, &kind, NULL);
}

static PyObject *busy_read(PyObject *object, PyObject *unused)
{
	struct busy *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;
	return attached_totals(skeleton->maps.times, sizeof(struct busy_time),
			       "read how busy CPUs were");
}

const void *busy_program(size_t *size)
{
	return busy__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "read", busy_read, METH_NOARGS, "bytes: struct busy_time, one a possible CPU." },
	{ "close", attached_close, METH_NOARGS, "Detach; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Busy(): how long each CPU was busy since this was made." },
	{ Py_tp_new, busy_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec busy_type = {
	.name = "atfnd.bpf._bpf.Busy",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
