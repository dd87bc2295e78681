/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Waits over the skeleton of waits.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. Totals are returned as bytes in the layout of waits.h.
 */
#include "attached.h"

#include <bpf/bpf.h>
#include <errno.h>

#include "waits.h"
#include "waits.skel.h"

static int start(void **skeleton, const void *netns)
{
	struct waits *made = *skeleton = waits__open();
	int error;

	if (!made)
		return -errno;
	made->rodata->netns = *(const unsigned int *)netns;
	error = waits__load(made);
	return error ?: waits__attach(made);
}

static void destroy(void *skeleton)
{
	waits__destroy(skeleton);
}

static PyObject *waits_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "time waits for spinlocks", start, destroy };
	static char *names[] = { "netns", NULL };
	unsigned int netns;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "I", names, &netns))
		return NULL;
	return attached_new(type, &kind, &netns);
}

static PyObject *waits_totals(PyObject *object, PyObject *unused)
{
	struct waits *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;
	return attached_totals(skeleton->maps.totals, sizeof(struct waits_totals),
			       "read what was waited");
}

const void *waits_program(size_t *size)
{
	return waits__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "totals", waits_totals, METH_NOARGS, "bytes: struct waits_totals, one a possible CPU." },
	{ "close", attached_close, METH_NOARGS, "Detach and free; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Waits(netns): waits for the locks of its TCP sockets, counted from now on." },
	{ Py_tp_new, waits_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec waits_type = {
	.name = "bench.extension._bench.Waits",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
