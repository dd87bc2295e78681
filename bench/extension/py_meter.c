/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Meter over the skeleton of meter.bpf.c, loaded when it is made, attached from `start` to
 * `stop`. bpf(2); a refusal is an OSError with the kernel's errno. Everything is returned as bytes in
 * the layouts of meter.h.
 */
#include "attached.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

#include "meter.h"
#include "meter.skel.h"

struct given {
	unsigned int ifindex, netns, flows;
};

static int load(void **skeleton, const void *data)
{
	const struct given *given = data;
	struct meter *made = *skeleton = meter__open();

	if (!made)
		return -errno;
	made->rodata->ifindex = given->ifindex;
	made->rodata->netns = given->netns;
	int error = bpf_map__set_max_entries(made->maps.flows, given->flows);

	return error ? error : meter__load(made);
}

static void destroy(void *skeleton)
{
	meter__destroy(skeleton);
}

static PyObject *meter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "the meter", load, destroy };
	static char *names[] = { "ifindex", "netns", "flows", NULL };
	struct given given = { .flows = 65536 };

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II|I", names, &given.ifindex, &given.netns,
					 &given.flows))
		return NULL;
	return attached_new(type, &kind, &given);
}

static PyObject *meter_start(PyObject *object, PyObject *unused)
{
	struct attached_object *self = (struct attached_object *)object;
	struct meter *skeleton = attached_skeleton(object);
	int error;

	(void)unused;
	if (!skeleton)
		return NULL;
	EXT_BEGIN_BUSY(self)
	error = meter__attach(skeleton);
	EXT_END_BUSY(self)
	if (error)
		return ext_oserror(-error, "attach the meter");
	Py_RETURN_NONE;
}

static PyObject *meter_stop(PyObject *object, PyObject *unused)
{
	struct attached_object *self = (struct attached_object *)object;
	struct meter *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;
	EXT_BEGIN_BUSY(self)
	meter__detach(skeleton);
	EXT_END_BUSY(self)
	Py_RETURN_NONE;
}

static PyObject *meter_totals(PyObject *object, PyObject *unused)
{
	struct meter *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;
	return attached_totals(skeleton->maps.totals, sizeof(struct meter_totals), "read totals");
}

/* One system call for the whole table: a walk by key would miss and repeat under 2000 live flows. */
static PyObject *meter_flows(PyObject *object, PyObject *unused)
{
	struct attached_object *self = (struct attached_object *)object;
	struct meter *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;

	int fd = bpf_map__fd(skeleton->maps.flows), error = 0;
	__u32 count = bpf_map__max_entries(skeleton->maps.flows), batch;
	struct meter_key *keys = malloc(count * sizeof(*keys));
	struct meter_flow *values = malloc(count * sizeof(*values));
	PyObject *result = NULL;

	if (keys && values) {
		EXT_BEGIN_BUSY(self)
		if (bpf_map_lookup_batch(fd, NULL, &batch, keys, values, &count, NULL))
			error = errno == ENOENT ? 0 : errno; /* ENOENT: the end was reached */
		EXT_END_BUSY(self)
		if (error)
			ext_oserror(error, "read the meter's flows");
		else
			result = Py_BuildValue("(y#y#)", (char *)keys,
					       (Py_ssize_t)(count * sizeof(*keys)), (char *)values,
					       (Py_ssize_t)(count * sizeof(*values)));
	} else {
		PyErr_NoMemory();
	}
	free(keys);
	free(values);
	return result;
}

const void *meter_program(size_t *size)
{
	return meter__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "start", meter_start, METH_NOARGS, "Attach to the tracepoints." },
	{ "stop", meter_stop, METH_NOARGS, "Detach; what was counted stays." },
	{ "totals", meter_totals, METH_NOARGS, "bytes: struct meter_totals, one a possible CPU." },
	{ "flows", meter_flows, METH_NOARGS,
	  "(bytes, bytes): struct meter_key[], struct meter_flow[], in one order." },
	{ "close", attached_close, METH_NOARGS, "Detach and free the maps." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Meter(ifindex, netns, flows=65536): locality of what a device receives." },
	{ Py_tp_new, meter_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec meter_type = {
	.name = "bench.extension._bench.Meter",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
