/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Busy over the skeleton of busy.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. It counts from its making to its close.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

#include "busy.h"
#include "busy.skel.h"

struct busy_object {
	PyObject_HEAD
	struct busy *skeleton;
	int busy;
};

static int load(struct busy_object *self)
{
	int error;

	self->skeleton = busy__open();
	if (!self->skeleton)
		return -errno;
	error = busy__load(self->skeleton);
	return error ? error : busy__attach(self->skeleton);
}

static PyObject *busy_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	static char *names[] = { NULL };
	struct busy_object *self;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names))
		return NULL;
	self = (struct busy_object *)allocate(type, 0);
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(self)
	error = load(self);
	EXT_END_BUSY(self)
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, "measure how busy CPUs are");
}

static void busy_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	busy__destroy(((struct busy_object *)object)->skeleton);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

static PyObject *busy_read(PyObject *object, PyObject *unused)
{
	struct busy_object *self = (struct busy_object *)object;
	int cpus = libbpf_num_possible_cpus();
	__u32 zero = 0;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	if (!self->skeleton)
		return ext_oserror(EBADF, "busy");
	if (cpus < 0)
		return ext_oserror(-cpus, "count CPUs");

	size_t size = (size_t)cpus * sizeof(struct busy_time);
	void *value = malloc(size);
	PyObject *result;

	if (!value)
		return PyErr_NoMemory();
	if (bpf_map_lookup_elem(bpf_map__fd(self->skeleton->maps.times), &zero, value))
		result = ext_oserror(errno, "read how busy CPUs were");
	else
		result = PyBytes_FromStringAndSize(value, (Py_ssize_t)size);
	free(value);
	return result;
}

static PyObject *busy_close(PyObject *object, PyObject *unused)
{
	struct busy_object *self = (struct busy_object *)object;
	struct busy *skeleton = self->skeleton;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	self->skeleton = NULL;
	EXT_BEGIN_BUSY(self)
	busy__destroy(skeleton);
	EXT_END_BUSY(self)
	Py_RETURN_NONE;
}

const void *busy_program(size_t *size)
{
	return busy__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "read", busy_read, METH_NOARGS, "bytes: struct busy_time, one a possible CPU." },
	{ "close", busy_close, METH_NOARGS, "Detach; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Busy(): how long each CPU was busy since this was made." },
	{ Py_tp_new, busy_new },
	{ Py_tp_dealloc, busy_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec busy_type = {
	.name = "atfnd.bpf._bpf.Busy",
	.basicsize = sizeof(struct busy_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
