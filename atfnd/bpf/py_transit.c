/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Transit over the skeleton of transit.bpf.c: flows on the move, and events. bpf(2); a
 * refusal is an OSError with the kernel's errno. Layouts are those of transit.h.
 */
#include "py_transit.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

static int keep_event(void *context, void *data, size_t size)
{
	struct transit_object *self = context;

	(void)size;
	if (buffer_reserve(&self->drained, sizeof(struct transit_event)))
		return -ENOMEM;
	memcpy(self->drained.bytes + self->drained.used, data, sizeof(struct transit_event));
	self->drained.used += sizeof(struct transit_event);
	return 0;
}

static void detach(struct transit_object *self)
{
	struct bpf_link *delivery = self->delivery, *poll = self->poll;

	self->delivery = self->poll = NULL;
	EXT_BEGIN_BUSY(self)
	bpf_link__destroy(delivery);
	bpf_link__destroy(poll);
	EXT_END_BUSY(self)
}

static void release(struct transit_object *self)
{
	struct transit *skeleton = self->skeleton;
	struct ring_buffer *ring = self->ring;

	transit_end_holds(self);
	detach(self);
	self->skeleton = NULL;
	self->ring = NULL;
	EXT_BEGIN_BUSY(self)
	ring_buffer__free(ring);
	transit__destroy(skeleton);
	EXT_END_BUSY(self)
	free(self->drained.bytes);
	self->drained = (struct buffer){ 0 };
}

static int load(struct transit_object *self, unsigned int flows)
{
	int error;

	self->skeleton = transit__open();
	if (!self->skeleton)
		return -errno;
	error = bpf_map__set_max_entries(self->skeleton->maps.flows, flows);
	if (!error) {
		EXT_BEGIN_BUSY(self)
		error = transit__load(self->skeleton);
		EXT_END_BUSY(self)
	}
	if (error)
		return error;
	self->ring = ring_buffer__new(bpf_map__fd(self->skeleton->maps.events), keep_event, self, NULL);
	return self->ring ? 0 : -errno;
}

static int transit_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "flows", NULL };
	struct transit_object *self = (struct transit_object *)object;
	unsigned int flows = 1024;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|I", names, &flows) ||
	    !ext_is_free(self->busy))
		return -1;
	release(self);
	error = load(self, flows);
	if (error) {
		release(self);
		ext_oserror(-error, "load the transit programs");
		return -1;
	}
	return 0;
}

static void transit_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release((struct transit_object *)object);
	free_slot(object);
	Py_DECREF(type);
}

struct transit_object *transit_opened(PyObject *object)
{
	struct transit_object *self = (struct transit_object *)object;

	if (!ext_is_free(self->busy))
		return NULL;
	if (self->skeleton)
		return self;
	PyErr_SetString(PyExc_ValueError, "transit is closed");
	return NULL;
}

static PyObject *transit_start(PyObject *object, PyObject *args)
{
	struct transit_object *self = transit_opened(object);
	int cgroup, error = 0;

	if (!self || !PyArg_ParseTuple(args, "i", &cgroup))
		return NULL;
	if (self->poll)
		return ext_oserror(EALREADY, "attach the transit programs");
	EXT_BEGIN_BUSY(self)
	self->poll = bpf_program__attach(self->skeleton->progs.on_poll);
	if (self->poll)
		self->delivery = bpf_program__attach_cgroup(self->skeleton->progs.on_delivery, cgroup);
	if (!self->delivery)
		error = errno;
	EXT_END_BUSY(self)
	if (!error)
		Py_RETURN_NONE;
	detach(self);
	return ext_oserror(error, "attach the transit programs");
}

static PyObject *transit_stop(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);

	(void)unused;
	if (!self)
		return NULL;
	if (transit_in_hold(self, NULL))
		return ext_oserror(EBUSY, "detach the transit programs while a queue is parked");
	detach(self);
	Py_RETURN_NONE;
}

static PyObject *transit_started(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);

	(void)unused;
	return self ? PyBool_FromLong(self->poll != NULL) : NULL;
}

static PyObject *transit_fileno(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);

	(void)unused;
	return self ? PyLong_FromLong(ring_buffer__epoll_fd(self->ring)) : NULL;
}

static PyObject *transit_flows(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);

	(void)unused;
	return self ? PyLong_FromLong(bpf_map__fd(self->skeleton->maps.flows)) : NULL;
}

static PyObject *transit_lost(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);

	(void)unused;
	return self ? PyLong_FromUnsignedLongLong(self->skeleton->bss->lost) : NULL;
}

static PyObject *transit_drain(PyObject *object, PyObject *unused)
{
	struct transit_object *self = transit_opened(object);
	int error;

	(void)unused;
	if (!self)
		return NULL;
	self->drained.used = 0;
	EXT_BEGIN_BUSY(self)
	error = ring_buffer__consume(self->ring);
	EXT_END_BUSY(self)
	if (error < 0)
		return ext_oserror(-error, "drain the transit events");
	return PyBytes_FromStringAndSize(self->drained.bytes ? self->drained.bytes : "",
					 (Py_ssize_t)self->drained.used);
}

static PyObject *transit_close(PyObject *object, PyObject *unused)
{
	struct transit_object *self = (struct transit_object *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	release(self);
	Py_RETURN_NONE;
}

static PyMethodDef transit_type_methods[] = {
	{ "start", transit_start, METH_VARARGS, "start(cgroup): attach to this cgroup's sockets, and to polls." },
	{ "stop", transit_stop, METH_NOARGS, "Detach; what was seen stays." },
	{ "started", transit_started, METH_NOARGS, "started() -> bool: attached now." },
	{ "fileno", transit_fileno, METH_NOARGS, "An epoll descriptor, readable when events wait." },
	{ "flows", transit_flows, METH_NOARGS, "Descriptor of the map of flows on the move." },
	{ "lost", transit_lost, METH_NOARGS, "Events that found the ring buffer full." },
	{ "drain", transit_drain, METH_NOARGS, "The waiting events (struct transit_event), packed." },
	{ "watch", transit_watch, METH_VARARGS, "watch(napi_id, tid): see its polls, and its thread (0: it has none); OSError." },
	{ "unwatch", transit_unwatch, METH_VARARGS, "unwatch(napi_id)" },
	{ "ask", transit_ask, METH_VARARGS,
	  "ask(napi_id, after_ns): when is all delivered that is in its ring then?" },
	{ "answer", transit_answer, METH_VARARGS, "answer(napi_id) -> ns, or None: not yet" },
	{ "polled", transit_polled, METH_VARARGS, "polled(napi_id): when its last poll ended, and where." },
	{ "served", transit_served, METH_VARARGS, "served(napi_id): packets and ns of polls without a pause." },
	{ "idle", transit_idle, METH_VARARGS, "idle(napi_id): its ring is empty, its thread asleep." },
	{ "park", transit_park, METH_VARARGS,
	  "park(napi_a, napi_b, cpu, priority, ready_ns, until_ns) -> ns since when: keep B's CPU, and see\n"
	  "A deliver by ready_ns." },
	{ "parked", transit_parked, METH_VARARGS,
	  "parked(napi_b) -> bool: since park() returned, without end." },
	{ "settle", transit_settle, METH_VARARGS,
	  "settle(napi_b, after_ns): end it when A is drained of what is in its ring then." },
	{ "settled", transit_settled, METH_VARARGS,
	  "settled(napi_b, until_ns): wait for its end; False: not yet." },
	{ "unpark", transit_unpark, METH_VARARGS,
	  "unpark(napi_b) -> (enum spinner_end, effective_ns, proof_ns, released_ns, polls of B in\n"
	  "between, two ends of polls of A: ended_ns, work, budget each). End it." },
	{ "close", transit_close, METH_NOARGS, "Detach and free the maps." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot transit_slots[] = {
	{ Py_tp_doc, "Transit(flows=1024): what is delivered of flows that change their queue." },
	{ Py_tp_init, transit_init },
	{ Py_tp_dealloc, transit_dealloc },
	{ Py_tp_methods, transit_type_methods },
	{ 0, NULL },
};

static PyType_Spec transit_spec = {
	.name = "atfnd.bpf._bpf.Transit",
	.basicsize = sizeof(struct transit_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = transit_slots,
};

int transit_add_types(PyObject *module)
{
	PyObject *type = PyType_FromSpec(&transit_spec);
	int failed = !type || PyModule_AddObjectRef(module, "Transit", type);

	Py_XDECREF(type);
	return failed ? -1 : 0;
}
