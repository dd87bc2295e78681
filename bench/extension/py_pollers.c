/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Pollers over the skeleton of pollers.bpf.c. bpf(2); a refusal is an OSError with the
 * kernel's errno. Totals are returned as bytes in the layout of pollers.h.
 */
#include "attached.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "pollers.h"
#include "pollers.skel.h"

/* 0, or a negative errno. */
static int attach(struct pollers *skeleton, const Py_buffer *pids)
{
	int error = pollers__load(skeleton);
	size_t each = bpf_map__value_size(skeleton->maps.threads);
	size_t count = pids->len / sizeof(__u32);
	const __u32 *pid = pids->buf;
	char fresh[each];

	memset(fresh, 0, each);
	for (size_t at = 0; !error && at < count; at++)
		error = bpf_map__update_elem(skeleton->maps.threads, &pid[at], sizeof(pid[at]),
					     fresh, each, BPF_ANY);
	return error ?: pollers__attach(skeleton);
}

static int start(void **skeleton, const void *pids)
{
	struct pollers *made = *skeleton = pollers__open();

	return made ? attach(made, pids) : -errno;
}

static void destroy(void *skeleton)
{
	pollers__destroy(skeleton);
}

static PyObject *pollers_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "time NAPI threads", start, destroy };
	static char *names[] = { "pids", NULL };
	Py_buffer pids;
	PyObject *made;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*", names, &pids))
		return NULL;
	made = attached_new(type, &kind, &pids);
	PyBuffer_Release(&pids);
	return made;
}

static PyObject *pollers_totals(PyObject *object, PyObject *args)
{
	struct pollers *skeleton;
	__u32 pid;

	if (!PyArg_ParseTuple(args, "I", &pid))
		return NULL;
	skeleton = attached_skeleton(object);
	if (!skeleton)
		return NULL;

	size_t each = bpf_map__value_size(skeleton->maps.threads);
	char value[each];
	int error = bpf_map__lookup_elem(skeleton->maps.threads, &pid, sizeof(pid), value, each, 0);

	if (error)
		return ext_oserror(-error, "read what a NAPI thread did");
	return PyBytes_FromStringAndSize(value, sizeof(struct poller_totals));
}

const void *pollers_program(size_t *size)
{
	return pollers__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "totals", pollers_totals, METH_VARARGS, "bytes: struct poller_totals of a thread." },
	{ "close", attached_close, METH_NOARGS, "Detach and free; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Pollers(pids): NAPI threads (__u32 each), timed from now on." },
	{ Py_tp_new, pollers_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec pollers_type = {
	.name = "bench.extension._bench.Pollers",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
