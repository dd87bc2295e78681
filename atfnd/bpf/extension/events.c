/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Ring buffers of BPF programs as Python objects: bpf(2), libbpf's ring_buffer. A drain copies records
 * into one buffer with the GIL released; Python decodes it once.
 */
#include "events.h"

#include <errno.h>
#include <stdlib.h>

static int keep_record(void *context, void *data, size_t size)
{
	struct events *self = context;

	if (size != self->kind->record_bytes)
		return -EBADMSG;
	if (buffer_reserve(&self->drained, size))
		return -ENOMEM;
	memcpy(self->drained.bytes + self->drained.used, data, size);
	self->drained.used += size;
	/* libbpf stops at a negative answer, with this record consumed (ringbuf.c). */
	return self->drained.used == self->kind->most * size ? -EAGAIN : 0;
}

struct events *events_new(PyTypeObject *type, const struct events_kind *kind)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct events *self = (struct events *)allocate(type, 0);

	if (self)
		self->kind = kind;
	return self;
}

int events_open(struct events *self, struct bpf_object *object, const char *ring, const __u64 *lost)
{
	self->object = object;
	self->lost = lost;
	self->ring = ring_buffer__new(bpf_object__find_map_fd_by_name(object, ring), keep_record,
				      self, NULL);
	return self->ring ? 0 : -errno;
}

PyObject *events_made(struct events *self, int error, const char *what)
{
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, what);
}

static void release(struct events *self)
{
	EXT_BEGIN_BUSY(self)
	ring_buffer__free(self->ring);
	self->ring = NULL;
	self->kind->release(self);
	EXT_END_BUSY(self)
	free(self->drained.bytes);
	self->drained = (struct buffer){ 0 };
}

void events_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	release((struct events *)object);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

void *events_opened(PyObject *object)
{
	struct events *self = (struct events *)object;

	if (!ext_is_free(self->busy))
		return NULL;
	if (self->ring)
		return self;
	return PyErr_Format(PyExc_ValueError, "%s is closed", self->kind->name);
}

PyObject *events_start(PyObject *object, PyObject *args)
{
	struct events *self = events_opened(object);
	int cgroup, error;

	if (!self || !PyArg_ParseTuple(args, "i", &cgroup))
		return NULL;
	if (self->attached)
		return ext_oserror(EALREADY, "attach BPF programs");
	EXT_BEGIN_BUSY(self)
	error = self->kind->attach(self, cgroup);
	if (error)
		self->kind->detach(self);
	EXT_END_BUSY(self)
	if (error)
		return ext_oserror(-error, "attach BPF programs");
	self->attached = 1;
	Py_RETURN_NONE;
}

PyObject *events_map(PyObject *object, PyObject *args)
{
	struct events *self = events_opened(object);
	const char *name;
	int fd;

	if (!self || !PyArg_ParseTuple(args, "s", &name))
		return NULL;
	fd = bpf_object__find_map_fd_by_name(self->object, name);
	return fd < 0 ? PyErr_Format(PyExc_KeyError, "no map %s", name) : PyLong_FromLong(fd);
}

PyObject *events_fileno(PyObject *object, PyObject *unused)
{
	struct events *self = events_opened(object);

	(void)unused;
	return self ? PyLong_FromLong(ring_buffer__epoll_fd(self->ring)) : NULL;
}

PyObject *events_lost(PyObject *object, PyObject *unused)
{
	struct events *self = events_opened(object);

	(void)unused;
	return self ? PyLong_FromUnsignedLongLong(*(const volatile __u64 *)self->lost) : NULL;
}

PyObject *events_drain(PyObject *object, PyObject *unused)
{
	struct events *self = events_opened(object);
	int error;

	(void)unused;
	if (!self)
		return NULL;
	self->drained.used = 0;
	EXT_BEGIN_BUSY(self)
	error = ring_buffer__consume(self->ring);
	EXT_END_BUSY(self)
	if (error < 0 && error != -EAGAIN)
		return ext_oserror(-error, "drain a ring buffer");
	return PyBytes_FromStringAndSize(self->drained.bytes ? self->drained.bytes : "",
					 (Py_ssize_t)self->drained.used);
}

PyObject *events_close(PyObject *object, PyObject *unused)
{
	struct events *self = (struct events *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	release(self);
	Py_RETURN_NONE;
}
