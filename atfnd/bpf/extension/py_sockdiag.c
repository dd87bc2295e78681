/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The Python face of sock_diag: SockDiag dumps the sockets of one protocol in one namespace,
 * DestroyListener receives their ends (SKNLGRP_INET*_DESTROY, net/core/sock_diag.c). Records are
 * packed struct sockdiag_record. Both read only; errors are OSError with the kernel's errno.
 */
#include "ext.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "sockdiag.h"

/* One open netlink socket and what is reused from call to call. */
struct reader {
	PyObject_HEAD
	struct nl_sock *socket;
	struct records records;
	struct seen *seen;
	int family, protocol, busy;
	unsigned int states;
	unsigned long long lost;
};

static void reader_release(struct reader *self)
{
	nl_socket_free(self->socket);
	seen_free(self->seen);
	free(self->records.at);
	self->socket = NULL;
	self->seen = NULL;
	self->records = (struct records){ 0 };
}

static void reader_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);

	reader_release((struct reader *)object);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

static PyObject *reader_close(PyObject *object, PyObject *unused)
{
	struct reader *self = (struct reader *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	reader_release(self);
	Py_RETURN_NONE;
}

static struct reader *reader_open(PyTypeObject *type, int netns_fd)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct reader *self = (struct reader *)allocate(type, 0);
	int err;

	if (!self)
		return NULL;
	self->seen = seen_new();
	Py_BEGIN_ALLOW_THREADS
	err = sockdiag_open(netns_fd, &self->socket);
	Py_END_ALLOW_THREADS
	if (!err && self->seen)
		return self;
	Py_DECREF(self);
	ext_oserror(err ? err : ENOMEM, "open sock_diag");
	return NULL;
}

/* The open reader, or NULL with an exception set. */
static struct reader *opened(PyObject *object)
{
	struct reader *self = (struct reader *)object;

	if (!ext_is_free(self->busy))
		return NULL;
	if (self->socket)
		return self;
	ext_oserror(EBADF, "sock_diag");
	return NULL;
}

static PyObject *reader_records(struct reader *self)
{
	return PyBytes_FromStringAndSize((char *)self->records.at,
					 self->records.count * sizeof(*self->records.at));
}

static PyObject *sockdiag_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "netns_fd", "family", "protocol", "states", NULL };
	int netns_fd, family, protocol;
	unsigned int states;
	struct reader *self;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iiiI", names, &netns_fd, &family, &protocol,
					 &states))
		return NULL;
	self = reader_open(type, netns_fd);
	if (self) {
		self->family = family;
		self->protocol = protocol;
		self->states = states;
	}
	return (PyObject *)self;
}

static PyObject *sockdiag_dump_all(PyObject *object, PyObject *unused)
{
	struct reader *self = opened(object);
	PyObject *result;
	int err;

	(void)unused;
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(self)
	err = sockdiag_dump(self->socket, self->family, self->protocol, self->states,
			    &self->records);
	EXT_END_BUSY(self)
	result = err ? ext_oserror(err, "sock_diag dump") : reader_records(self);
	return result;
}

static PyObject *gone_list(const __u64 *gone, size_t count)
{
	PyObject *list = PyList_New(count);

	for (size_t i = 0; list && i < count; i++) {
		PyObject *cookie = PyLong_FromUnsignedLongLong(gone[i]);

		if (!cookie || PyList_SetItem(list, i, cookie))
			Py_CLEAR(list);
	}
	return list;
}

static PyObject *sockdiag_changes(PyObject *object, PyObject *args)
{
	struct reader *self = opened(object);
	unsigned long long min_bytes, min_age_ns;
	PyObject *records = NULL, *cookies = NULL;
	__u64 *gone = NULL;
	size_t gone_count = 0;
	struct timespec now;
	int err;

	if (!self || !PyArg_ParseTuple(args, "KK", &min_bytes, &min_age_ns))
		return NULL;
	EXT_BEGIN_BUSY(self)
	clock_gettime(CLOCK_MONOTONIC, &now);
	err = sockdiag_dump(self->socket, self->family, self->protocol, self->states,
			    &self->records);
	if (!err)
		err = seen_compare(self->seen, &self->records,
				   now.tv_sec * 1000000000ULL + now.tv_nsec, min_bytes, min_age_ns,
				   &gone, &gone_count);
	EXT_END_BUSY(self)
	if (err) {
		ext_oserror(err, "sock_diag dump");
	} else {
		records = reader_records(self);
		cookies = gone_list(gone, gone_count);
	}
	free(gone);
	if (records && cookies)
		return Py_BuildValue("(NN)", records, cookies);
	Py_XDECREF(records);
	Py_XDECREF(cookies);
	return NULL;
}

static PyObject *listener_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "netns_fd", NULL };
	struct reader *self;
	int netns_fd, err;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &netns_fd))
		return NULL;
	self = reader_open(type, netns_fd);
	err = self ? sockdiag_listen(self->socket) : 0;
	if (err) {
		ext_oserror(err, "listen to socket destruction");
		Py_CLEAR(self);
	}
	return (PyObject *)self;
}

static PyObject *listener_fileno(PyObject *object, PyObject *unused)
{
	struct reader *self = opened(object);

	(void)unused;
	return self ? PyLong_FromLong(nl_socket_get_fd(self->socket)) : NULL;
}

static PyObject *listener_drain(PyObject *object, PyObject *unused)
{
	struct reader *self = opened(object);
	PyObject *result;
	int err;

	(void)unused;
	if (!self)
		return NULL;
	EXT_BEGIN_BUSY(self)
	err = sockdiag_destroyed(self->socket, &self->records, &self->lost);
	EXT_END_BUSY(self)
	result = err ? ext_oserror(err, "read socket destruction") : reader_records(self);
	return result;
}

static PyObject *listener_lost(PyObject *object, PyObject *unused)
{
	struct reader *self = (struct reader *)object;

	(void)unused;
	return ext_is_free(self->busy) ? PyLong_FromUnsignedLongLong(self->lost) : NULL;
}

static PyObject *sockdiag_layout(PyObject *self, PyObject *unused)
{
	(void)self, (void)unused;
#define FIELD(code, type, name, array) , #name, offsetof(struct sockdiag_record, name), code
#define FORMAT(code, type, name, array) "(sns)"
	return Py_BuildValue("(n[" SOCKDIAG_FIELDS(FORMAT) "])",
			     sizeof(struct sockdiag_record) SOCKDIAG_FIELDS(FIELD));
#undef FORMAT
#undef FIELD
}

PyMethodDef sockdiag_methods[] = {
	{ "sockdiag_layout", sockdiag_layout, METH_NOARGS,
	  "sockdiag_layout() -> (size, [(field, offset, struct code), ...]) of one record" },
	{ NULL, NULL, 0, NULL },
};

static PyMethodDef dumper_methods[] = {
	{ "dump", sockdiag_dump_all, METH_NOARGS, "dump() -> records of every socket" },
	{ "changes", sockdiag_changes, METH_VARARGS,
	  "changes(min_bytes, min_age_ns) -> (records of sockets used since the last call, cookies "
	  "of sockets gone)" },
	{ "close", reader_close, METH_NOARGS, "close()" },
	{ NULL, NULL, 0, NULL },
};

static PyMethodDef destroy_methods[] = {
	{ "fileno", listener_fileno, METH_NOARGS, "fileno() -> readable when a socket has ended" },
	{ "drain", listener_drain, METH_NOARGS, "drain() -> records of sockets that ended" },
	{ "lost", listener_lost, METH_NOARGS, "lost() -> overruns of the queue since the start" },
	{ "close", reader_close, METH_NOARGS, "close()" },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot dumper_slots[] = {
	{ Py_tp_doc, "SockDiag(netns_fd, family, protocol, states): -1 is our own namespace." },
	{ Py_tp_new, sockdiag_new },
	{ Py_tp_dealloc, reader_dealloc },
	{ Py_tp_methods, dumper_methods },
	{ 0, NULL },
};

static PyType_Slot destroy_slots[] = {
	{ Py_tp_doc, "DestroyListener(netns_fd): ends of TCP and UDP sockets of one namespace." },
	{ Py_tp_new, listener_new },
	{ Py_tp_dealloc, reader_dealloc },
	{ Py_tp_methods, destroy_methods },
	{ 0, NULL },
};

PyType_Spec sockdiag_type = {
	.name = "atfnd.bpf._bpf.SockDiag",
	.basicsize = sizeof(struct reader),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = dumper_slots,
};

PyType_Spec listener_type = {
	.name = "atfnd.bpf._bpf.DestroyListener",
	.basicsize = sizeof(struct reader),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = destroy_slots,
};
