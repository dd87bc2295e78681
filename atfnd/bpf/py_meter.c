/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Meter over the skeleton of meter.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. Everything is returned as bytes in the layouts of meter.h.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>

#include "meter.h"
#include "meter.skel.h"

struct meter_object {
	PyObject_HEAD
	struct meter *skeleton;
	struct ring_buffer *ring;
	PyObject *drained; /* list the ring's callback appends to, only while draining */
	int busy;
};

static int on_reaction(void *context, void *data, size_t size)
{
	struct meter_object *self = context;
	PyObject *item = PyBytes_FromStringAndSize(data, (Py_ssize_t)size);
	int failed = !item || PyList_Append(self->drained, item);

	Py_XDECREF(item);
	return failed ? -ENOMEM : 0;
}

static void release(struct meter_object *self)
{
	struct meter *skeleton = self->skeleton;
	struct ring_buffer *ring = self->ring;

	self->skeleton = NULL;
	self->ring = NULL;
	EXT_BEGIN_BUSY(self)
	ring_buffer__free(ring);
	meter__destroy(skeleton);
	EXT_END_BUSY(self)
}

static int load(struct meter_object *self, unsigned int ifindex, unsigned int netns,
		unsigned int flows)
{
	int err;

	self->skeleton = meter__open();
	if (!self->skeleton)
		return -errno;
	self->skeleton->rodata->ifindex = ifindex;
	self->skeleton->rodata->netns = netns;
	err = bpf_map__set_max_entries(self->skeleton->maps.flows, flows);
	if (!err) {
		EXT_BEGIN_BUSY(self)
		err = meter__load(self->skeleton);
		EXT_END_BUSY(self)
	}
	if (err)
		return err;
	self->ring = ring_buffer__new(bpf_map__fd(self->skeleton->maps.reactions), on_reaction, self,
				      NULL);
	return self->ring ? 0 : -errno;
}

static int meter_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "ifindex", "netns", "flows", NULL };
	struct meter_object *self = (struct meter_object *)object;
	unsigned int ifindex, netns, flows = 65536;
	int err;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "II|I", names, &ifindex, &netns, &flows) ||
	    !ext_is_free(self->busy))
		return -1;
	release(self);
	err = load(self, ifindex, netns, flows);
	if (err) {
		release(self);
		ext_oserror(-err, "load the meter");
		return -1;
	}
	return 0;
}

static void meter_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release((struct meter_object *)object);
	free_slot(object);
	Py_DECREF(type);
}

static struct meter_object *opened(PyObject *object)
{
	struct meter_object *self = (struct meter_object *)object;

	if (!ext_is_free(self->busy))
		return NULL;
	if (self->skeleton)
		return self;
	PyErr_SetString(PyExc_ValueError, "the meter is closed");
	return NULL;
}

static PyObject *meter_start(PyObject *object, PyObject *unused)
{
	struct meter_object *self = opened(object);
	int err;

	(void)unused;
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(self)
	err = meter__attach(self->skeleton);
	EXT_END_BUSY(self)
	if (err)
		return ext_oserror(-err, "attach the meter");
	Py_RETURN_NONE;
}

static PyObject *meter_stop(PyObject *object, PyObject *unused)
{
	struct meter_object *self = opened(object);

	(void)unused;
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(self)
	meter__detach(self->skeleton);
	EXT_END_BUSY(self)
	Py_RETURN_NONE;
}

static PyObject *meter_totals(PyObject *object, PyObject *unused)
{
	struct meter_object *self = opened(object);
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
	struct meter_object *self = opened(object);

	(void)unused;
	if (!self)
		return NULL;

	int fd = bpf_map__fd(self->skeleton->maps.flows), err = 0;
	__u32 count = bpf_map__max_entries(self->skeleton->maps.flows), batch;
	struct meter_key *keys = malloc(count * sizeof(*keys));
	struct meter_flow *values = malloc(count * sizeof(*values));
	PyObject *result = NULL;

	if (keys && values) {
		EXT_BEGIN_BUSY(self)
		if (bpf_map_lookup_batch(fd, NULL, &batch, keys, values, &count, NULL))
			err = errno == ENOENT ? 0 : errno; /* ENOENT: the end was reached */
		EXT_END_BUSY(self)
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

static PyObject *meter_reactions(PyObject *object, PyObject *unused)
{
	struct meter_object *self = opened(object);
	int err;

	(void)unused;
	if (!self)
		return NULL;

	PyObject *list = PyList_New(0);

	if (!list)
		return NULL;
	self->drained = list;
	err = ring_buffer__consume(self->ring);
	self->drained = NULL;
	if (err < 0) {
		Py_DECREF(list);
		return PyErr_Occurred() ? NULL : ext_oserror(-err, "drain the meter");
	}
	return list;
}

static PyObject *meter_close(PyObject *object, PyObject *unused)
{
	struct meter_object *self = (struct meter_object *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	release(self);
	Py_RETURN_NONE;
}

static PyMethodDef meter_type_methods[] = {
	{ "start", meter_start, METH_NOARGS, "Attach to the tracepoints." },
	{ "stop", meter_stop, METH_NOARGS, "Detach; what was counted stays." },
	{ "totals", meter_totals, METH_NOARGS, "bytes: struct meter_totals, one a possible CPU." },
	{ "flows", meter_flows, METH_NOARGS,
	  "(bytes, bytes): struct meter_key[], struct meter_flow[], in one order." },
	{ "reactions", meter_reactions, METH_NOARGS,
	  "[bytes]: struct meter_reaction since the last call, oldest first." },
	{ "close", meter_close, METH_NOARGS, "Detach and free the maps." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot meter_slots[] = {
	{ Py_tp_doc, "Meter(ifindex, netns, flows=65536): locality of what a device receives." },
	{ Py_tp_init, meter_init },
	{ Py_tp_dealloc, meter_dealloc },
	{ Py_tp_methods, meter_type_methods },
	{ 0, NULL },
};

static PyType_Spec meter_spec = {
	.name = "atfnd.bpf._bpf.Meter",
	.basicsize = sizeof(struct meter_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = meter_slots,
};

PyMethodDef meter_methods[] = {
	{ NULL, NULL, 0, NULL },
};

int meter_add_types(PyObject *module)
{
	PyObject *type = PyType_FromSpec(&meter_spec);
	int failed = !type || PyModule_AddObjectRef(module, "Meter", type);

	Py_XDECREF(type);
	return failed ? -1 : 0;
}
