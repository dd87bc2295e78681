/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Pairs over the skeleton of pairs.bpf.c.
 */
#include "attached.h"

#include <errno.h>

#include "pairs.h"
#include "pairs.skel.h"

static int start(void **skeleton, const void *given)
{
	struct pairs *made = *skeleton = pairs__open();
	int error = made ? pairs__load(made) : -errno;

	(void)given;
	return error ?: pairs__attach(made);
}

static void destroy(void *skeleton)
{
	pairs__destroy(skeleton);
}

static PyObject *pairs_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "count forwarded packets", start, destroy };
	static char *names[] = { NULL };

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names))
		return NULL;
	return attached_new(type, &kind, NULL);
}

static PyObject *pairs_map(PyObject *object, PyObject *unused)
{
	struct pairs *skeleton = attached_skeleton(object);

	(void)unused;
	return skeleton ? PyLong_FromLong(bpf_map__fd(skeleton->maps.pairs)) : NULL;
}

static PyObject *pairs_missed(PyObject *object, PyObject *unused)
{
	struct pairs *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;
	return PyLong_FromUnsignedLongLong(
		__atomic_load_n(&skeleton->bss->missed, __ATOMIC_RELAXED));
}

const void *pairs_program(size_t *size)
{
	return pairs__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "map", pairs_map, METH_NOARGS, "Descriptor of the map: struct pair_key to pair_count." },
	{ "missed", pairs_missed, METH_NOARGS, "Packets that found no room in it." },
	{ "close", attached_close, METH_NOARGS, "Detach; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Pairs(): forwarded packets since this was made." },
	{ Py_tp_new, pairs_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec pairs_type = {
	.name = "atfnd.bpf._bpf.PairsPrograms",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
