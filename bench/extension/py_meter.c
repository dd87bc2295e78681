/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Meter over the skeleton of meter.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. Everything is returned as bytes in the layouts of meter.h.
 */
#include "events.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

#include "meter.h"
#include "meter.skel.h"

struct meter_object {
	struct events events;
	struct meter *skeleton;
};

static void release(struct events *events)
{
	struct meter_object *self = (struct meter_object *)events;

	meter__destroy(self->skeleton);
	self->skeleton = NULL;
}

static const struct events_kind kind = {
	.name = "the meter",
	.record_bytes = sizeof(struct meter_reaction),
	.release = release,
};

static int load(struct meter_object *self, unsigned int ifindex, unsigned int netns,
		unsigned int flows)
{
	int error;

	self->skeleton = meter__open();
	if (!self->skeleton)
		return -errno;
	self->skeleton->rodata->ifindex = ifindex;
	self->skeleton->rodata->netns = netns;
	error = bpf_map__set_max_entries(self->skeleton->maps.flows, flows);
	if (!error)
		error = meter__load(self->skeleton);
	return error ? error : events_open(&self->events, self->skeleton->obj, "reactions", NULL);
}

static PyObject *meter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "ifindex", "netns", "flows", NULL };
	unsigned int ifindex, netns, flows = 65536;
	struct meter_object *self;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II|I", names, &ifindex, &netns, &flows))
		return NULL;
	self = (struct meter_object *)events_new(type, &kind);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = load(self, ifindex, netns, flows);
	Py_END_ALLOW_THREADS
	return events_made(&self->events, error, "load the meter");
}

static PyObject *meter_start(PyObject *object, PyObject *unused)
{
	struct meter_object *self = events_opened(object);
	int err;

	(void)unused;
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(&self->events)
	err = meter__attach(self->skeleton);
	EXT_END_BUSY(&self->events)
	if (err)
		return ext_oserror(-err, "attach the meter");
	Py_RETURN_NONE;
}

static PyObject *meter_stop(PyObject *object, PyObject *unused)
{
	struct meter_object *self = events_opened(object);

	(void)unused;
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(&self->events)
	meter__detach(self->skeleton);
	EXT_END_BUSY(&self->events)
	Py_RETURN_NONE;
}

static PyObject *meter_totals(PyObject *object, PyObject *unused)
{
	struct meter_object *self = events_opened(object);
	int cpus = libbpf_num_possible_cpus();
	__u32 zero = 0;

	(void)unused;
	if (!self)
		return NULL;
	if (cpus < 0)
		return ext_oserror(-cpus, "count CPUs");

	size_t size = (size_t)cpus * sizeof(struct meter_totals);
	void *value = malloc(size);
	PyObject *result;

	if (!value)
		return PyErr_NoMemory();
	if (bpf_map_lookup_elem(bpf_map__fd(self->skeleton->maps.totals), &zero, value))
		result = ext_oserror(errno, "read the meter");
	else
		result = PyBytes_FromStringAndSize(value, (Py_ssize_t)size);
	free(value);
	return result;
}

/* One system call for the whole table: a walk by key would miss and repeat under 2000 live flows. */
static PyObject *meter_flows(PyObject *object, PyObject *unused)
{
	struct meter_object *self = events_opened(object);

	(void)unused;
	if (!self)
		return NULL;

	int fd = bpf_map__fd(self->skeleton->maps.flows), err = 0;
	__u32 count = bpf_map__max_entries(self->skeleton->maps.flows), batch;
	struct meter_key *keys = malloc(count * sizeof(*keys));
	struct meter_flow *values = malloc(count * sizeof(*values));
	PyObject *result = NULL;

	if (keys && values) {
		EXT_BEGIN_BUSY(&self->events)
		if (bpf_map_lookup_batch(fd, NULL, &batch, keys, values, &count, NULL))
			err = errno == ENOENT ? 0 : errno; /* ENOENT: the end was reached */
		EXT_END_BUSY(&self->events)
		if (err)
			ext_oserror(err, "read the meter's flows");
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
	EVENTS_FILENO,
	EVENTS_DRAIN, /* struct meter_reaction */
	EVENTS_CLOSE,
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Meter(ifindex, netns, flows=65536): locality of what a device receives." },
	{ Py_tp_new, meter_new },
	{ Py_tp_dealloc, events_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec meter_type = {
	.name = "bench.extension._bench.Meter",
	.basicsize = sizeof(struct meter_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
