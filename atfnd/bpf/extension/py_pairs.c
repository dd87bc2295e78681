/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Pairs over the skeleton of pairs.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. It counts from its making to its close.
 */
#include "ext.h"

#include <errno.h>

#include "pairs.h"
#include "pairs.skel.h"

struct pairs_object {
	PyObject_HEAD
	struct pairs *skeleton;
	int busy;
};

static int load(struct pairs_object *self)
{
	int error;

	self->skeleton = pairs__open();
	if (!self->skeleton)
		return -errno;
	error = pairs__load(self->skeleton);
	return error ? error : pairs__attach(self->skeleton);
}

static PyObject *pairs_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	static char *names[] = { NULL };
	struct pairs_object *self;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names))
		return NULL;
	self = (struct pairs_object *)allocate(type, 0);
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(self)
	error = load(self);
	EXT_END_BUSY(self)
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, "count forwarded packets");
}

static void pairs_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	pairs__destroy(((struct pairs_object *)object)->skeleton);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

static PyObject *pairs_map(PyObject *object, PyObject *unused)
{
	struct pairs_object *self = (struct pairs_object *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	if (!self->skeleton)
		return ext_oserror(EBADF, "pairs");
	return PyLong_FromLong(bpf_map__fd(self->skeleton->maps.pairs));
}

static PyObject *pairs_missed(PyObject *object, PyObject *unused)
{
	struct pairs_object *self = (struct pairs_object *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	if (!self->skeleton)
		return ext_oserror(EBADF, "pairs");
	return PyLong_FromUnsignedLongLong(
		__atomic_load_n(&self->skeleton->bss->missed, __ATOMIC_RELAXED));
}

static PyObject *pairs_close(PyObject *object, PyObject *unused)
{
	struct pairs_object *self = (struct pairs_object *)object;
	struct pairs *skeleton = self->skeleton;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	self->skeleton = NULL;
	EXT_BEGIN_BUSY(self)
	pairs__destroy(skeleton);
	EXT_END_BUSY(self)
	Py_RETURN_NONE;
}

const void *pairs_program(size_t *size)
{
	return pairs__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "map", pairs_map, METH_NOARGS, "Descriptor of the map: struct pair_key to pair_count." },
	{ "missed", pairs_missed, METH_NOARGS, "Packets that found no room in it." },
	{ "close", pairs_close, METH_NOARGS, "Detach; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Pairs(): forwarded packets since this was made." },
	{ Py_tp_new, pairs_new },
	{ Py_tp_dealloc, pairs_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec pairs_type = {
	.name = "atfnd.bpf._bpf.Pairs",
	.basicsize = sizeof(struct pairs_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
