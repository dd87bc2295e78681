/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Birth over the skeleton of birth.bpf.c: connects and listeners as they happen. bpf(2); a
 * refusal is an OSError with the kernel's errno. The events are those of birth.h.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>

#include "birth.h"
#include "birth.skel.h"
#include "buffer.h"

struct birth_object {
	PyObject_HEAD
	struct birth *skeleton;
	struct bpf_link *births, *ends; /* while started */
	struct ring_buffer *ring;
	struct buffer drained; /* kept between calls */
	int busy;
};

static int keep_event(void *context, void *data, size_t size)
{
	struct birth_object *self = context;

	(void)size;
	if (buffer_reserve(&self->drained, sizeof(struct birth_event)))
		return -ENOMEM;
	memcpy(self->drained.bytes + self->drained.used, data, sizeof(struct birth_event));
	self->drained.used += sizeof(struct birth_event);
	return 0;
}

static void detach(struct birth_object *self)
{
	struct bpf_link *births = self->births, *ends = self->ends;

	self->births = self->ends = NULL;
	EXT_BEGIN_BUSY(self)
	bpf_link__destroy(births);
	bpf_link__destroy(ends);
	EXT_END_BUSY(self)
}

static void release(struct birth_object *self)
{
	struct birth *skeleton = self->skeleton;
	struct ring_buffer *ring = self->ring;

	detach(self);
	self->skeleton = NULL;
	self->ring = NULL;
	EXT_BEGIN_BUSY(self)
	ring_buffer__free(ring);
	birth__destroy(skeleton);
	EXT_END_BUSY(self)
	free(self->drained.bytes);
	self->drained = (struct buffer){ 0 };
}

static int load(struct birth_object *self, unsigned int bytes)
{
	int error;

	self->skeleton = birth__open();
	if (!self->skeleton)
		return -errno;
	error = bpf_map__set_max_entries(self->skeleton->maps.events, bytes);
	if (!error) {
		EXT_BEGIN_BUSY(self)
		error = birth__load(self->skeleton);
		EXT_END_BUSY(self)
	}
	if (error)
		return error;
	self->ring = ring_buffer__new(bpf_map__fd(self->skeleton->maps.events), keep_event, self, NULL);
	return self->ring ? 0 : -errno;
}

static int birth_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "bytes", NULL };
	struct birth_object *self = (struct birth_object *)object;
	unsigned int bytes = 1 << 20;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|I", names, &bytes) ||
	    !ext_is_free(self->busy))
		return -1;
	release(self);
	error = load(self, bytes);
	if (error) {
		release(self);
		ext_oserror(-error, "load the birth programs");
		return -1;
	}
	return 0;
}

static void birth_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	freefunc free_slot = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release((struct birth_object *)object);
	free_slot(object);
	Py_DECREF(type);
}

/* The open object, or NULL with an exception set. */
static struct birth_object *opened(PyObject *object)
{
	struct birth_object *self = (struct birth_object *)object;

	if (!ext_is_free(self->busy))
		return NULL;
	if (self->skeleton)
		return self;
	PyErr_SetString(PyExc_ValueError, "birth is closed");
	return NULL;
}

static PyObject *birth_start(PyObject *object, PyObject *args)
{
	struct birth_object *self = opened(object);
	int cgroup, error = 0;

	if (!self || !PyArg_ParseTuple(args, "i", &cgroup))
		return NULL;
	if (self->births)
		return ext_oserror(EALREADY, "attach the birth programs");
	EXT_BEGIN_BUSY(self)
	self->ends = bpf_program__attach(self->skeleton->progs.on_state);
	if (self->ends)
		self->births = bpf_program__attach_cgroup(self->skeleton->progs.on_birth, cgroup);
	if (!self->births)
		error = errno;
	EXT_END_BUSY(self)
	if (!error)
		Py_RETURN_NONE;
	detach(self);
	return ext_oserror(error, "attach the birth programs");
}

static PyObject *birth_stop(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);

	(void)unused;
	if (!self)
		return NULL;
	detach(self);
	Py_RETURN_NONE;
}

static PyObject *birth_started(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);

	(void)unused;
	return self ? PyBool_FromLong(self->births != NULL) : NULL;
}

static PyObject *birth_fileno(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);

	(void)unused;
	return self ? PyLong_FromLong(ring_buffer__epoll_fd(self->ring)) : NULL;
}

static PyObject *birth_served(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);

	(void)unused;
	return self ? PyLong_FromLong(bpf_map__fd(self->skeleton->maps.served)) : NULL;
}

static PyObject *birth_accepting(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);

	(void)unused;
	return self ? PyLong_FromLong(bpf_map__fd(self->skeleton->maps.accepting)) : NULL;
}

static PyObject *birth_lost(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);

	(void)unused;
	return self ? PyLong_FromUnsignedLongLong(self->skeleton->bss->lost) : NULL;
}

static PyObject *birth_drain(PyObject *object, PyObject *unused)
{
	struct birth_object *self = opened(object);
	int error;

	(void)unused;
	if (!self)
		return NULL;
	self->drained.used = 0;
	EXT_BEGIN_BUSY(self)
	error = ring_buffer__consume(self->ring);
	EXT_END_BUSY(self)
	if (error < 0)
		return ext_oserror(-error, "drain the births");
	return PyBytes_FromStringAndSize(self->drained.bytes ? self->drained.bytes : "",
					 (Py_ssize_t)self->drained.used);
}

static PyObject *birth_close(PyObject *object, PyObject *unused)
{
	struct birth_object *self = (struct birth_object *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	release(self);
	Py_RETURN_NONE;
}

static PyMethodDef birth_type_methods[] = {
	{ "start", birth_start, METH_VARARGS, "start(cgroup): attach to this cgroup's sockets." },
	{ "stop", birth_stop, METH_NOARGS, "Detach; what was seen stays." },
	{ "started", birth_started, METH_NOARGS, "started() -> bool: attached now." },
	{ "fileno", birth_fileno, METH_NOARGS, "An epoll descriptor, readable when events wait." },
	{ "served", birth_served, METH_NOARGS, "Descriptor of the map of served namespaces." },
	{ "accepting", birth_accepting, METH_NOARGS, "Descriptor of the map of ports whose accepts are told." },
	{ "lost", birth_lost, METH_NOARGS, "Events that found the ring buffer full." },
	{ "drain", birth_drain, METH_NOARGS, "The waiting events (struct birth_event), packed." },
	{ "close", birth_close, METH_NOARGS, "Detach and free the maps." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot birth_slots[] = {
	{ Py_tp_doc, "Birth(bytes=1 MiB): connects and listeners; so large a ring buffer (a power of two)." },
	{ Py_tp_init, birth_init },
	{ Py_tp_dealloc, birth_dealloc },
	{ Py_tp_methods, birth_type_methods },
	{ 0, NULL },
};

static PyType_Spec birth_spec = {
	.name = "atfnd.bpf._bpf.Birth",
	.basicsize = sizeof(struct birth_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = birth_slots,
};

int birth_add_types(PyObject *module)
{
	PyObject *type = PyType_FromSpec(&birth_spec);
	int failed = !type || PyModule_AddObjectRef(module, "Birth", type);

	Py_XDECREF(type);
	return failed ? -1 : 0;
}
