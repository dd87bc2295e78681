/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Observer: loads and attaches observer.bpf.c, drains its ring buffer and runs its socket
 * iterators. Both copy records into one buffer with the GIL released; Python decodes it once.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "buffer.h"
#include "observer.h"
#include "observer.skel.h"

#define EVENT_PROGRAMS 5
#define DRAINED 512 /* records a call, so that a burst neither holds the loop nor grows the buffer */

struct observer_object {
	PyObject_HEAD
	struct observer *skeleton;
	struct bpf_link *events[EVENT_PROGRAMS];
	struct bpf_link *tcp, *udp, *told;
	struct bpf_link *ends; /* NULL: the end of UDP sockets is not seen */
	struct ring_buffer *ring;
	struct buffer drained; /* kept between calls */
	int busy;
};

static int keep_record(void *context, void *data, size_t size)
{
	struct observer_object *self = context;

	if (size < sizeof(struct observer_record) ||
	    buffer_reserve(&self->drained, sizeof(struct observer_record)))
		return -ENOMEM;
	memcpy(self->drained.bytes + self->drained.used, data, sizeof(struct observer_record));
	self->drained.used += sizeof(struct observer_record);
	/* libbpf stops at a negative answer, with this record consumed (ringbuf.c). */
	return self->drained.used < DRAINED * sizeof(struct observer_record) ? 0 : -EAGAIN;
}

static void release(struct observer_object *self)
{
	for (int i = 0; i < EVENT_PROGRAMS; i++) {
		bpf_link__destroy(self->events[i]);
		self->events[i] = NULL;
	}
	bpf_link__destroy(self->ends);
	self->ends = NULL;
	bpf_link__destroy(self->tcp);
	bpf_link__destroy(self->udp);
	bpf_link__destroy(self->told);
	self->tcp = self->udp = self->told = NULL;
	ring_buffer__free(self->ring);
	self->ring = NULL;
	observer__destroy(self->skeleton);
	self->skeleton = NULL;
	free(self->drained.bytes);
	self->drained = (struct buffer){ 0 };
}

/* With all programs, or else without the one that not every kernel takes. */
static struct observer *loaded(void)
{
	struct observer *skeleton = observer__open_and_load();

	if (skeleton)
		return skeleton;
	skeleton = observer__open();
	if (!skeleton)
		return NULL;
	bpf_program__set_autoload(skeleton->progs.on_release, false);
	if (!observer__load(skeleton))
		return skeleton;

	int error = errno;

	observer__destroy(skeleton);
	errno = error;
	return NULL;
}

/* 0 or a negative errno; what was opened before a failure is released by the caller. */
static int open_all(struct observer_object *self, const char **what)
{
	struct bpf_program *programs[EVENT_PROGRAMS];
	union bpf_iter_link_info info = {};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info, .link_info_len = sizeof(info));

	*what = "load the observer's BPF programs";
	self->skeleton = loaded();
	if (!self->skeleton)
		return -errno;
	*what = "attach the observer's tracepoints";
	programs[0] = self->skeleton->progs.on_recv;
	programs[1] = self->skeleton->progs.on_send;
	programs[2] = self->skeleton->progs.on_state;
	programs[3] = self->skeleton->progs.on_migrate;
	programs[4] = self->skeleton->progs.on_poll;
	for (int i = 0; i < EVENT_PROGRAMS; i++) {
		self->events[i] = bpf_program__attach(programs[i]);
		if (!self->events[i])
			return -errno;
	}
	*what = "attach the socket iterators";
	self->tcp = bpf_program__attach_iter(self->skeleton->progs.each_tcp, NULL);
	self->udp = bpf_program__attach_iter(self->skeleton->progs.each_udp, NULL);
	info.map.map_fd = bpf_map__fd(self->skeleton->maps.sockets);
	self->told = bpf_program__attach_iter(self->skeleton->progs.each_told, &options);
	if (!self->tcp || !self->udp || !self->told)
		return -errno;
	*what = "map the observer's ring buffer";
	self->ring = ring_buffer__new(bpf_map__fd(self->skeleton->maps.records), keep_record, self,
				      NULL);
	return self->ring ? 0 : -errno;
}

static PyObject *observer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct observer_object *self;
	const char *what = NULL;
	int error;

	(void)kwargs;
	if (!PyArg_ParseTuple(args, ""))
		return NULL;
	self = (struct observer_object *)allocate(type, 0);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = open_all(self, &what);
	Py_END_ALLOW_THREADS
	if (error) {
		Py_DECREF(self);
		return ext_oserror(-error, what);
	}
	return (PyObject *)self;
}

static void observer_dealloc(PyObject *object)
{
	PyTypeObject *type = Py_TYPE(object);
	freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release((struct observer_object *)object);
	free_object(object);
	Py_DECREF(type);
}

static int is_open(struct observer_object *self)
{
	if (!ext_is_free(self->busy))
		return 0;
	if (self->skeleton)
		return 1;
	PyErr_SetString(PyExc_ValueError, "the observer is closed");
	return 0;
}

static PyObject *observer_close(PyObject *object, PyObject *unused)
{
	struct observer_object *self = (struct observer_object *)object;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	release(self);
	Py_RETURN_NONE;
}

static PyObject *observer_see_ends(PyObject *object, PyObject *args)
{
	struct observer_object *self = (struct observer_object *)object;
	int cgroup, error = 0;

	if (!is_open(self) || !PyArg_ParseTuple(args, "i", &cgroup))
		return NULL;
	if (!self->ends) {
		EXT_BEGIN_BUSY(self)
		self->ends = bpf_program__attach_cgroup(self->skeleton->progs.on_release, cgroup);
		error = self->ends ? 0 : errno;
		EXT_END_BUSY(self)
	}
	if (error)
		return ext_oserror(error, "attach to the end of sockets");
	Py_RETURN_NONE;
}

static PyObject *observer_configure(PyObject *object, PyObject *args)
{
	struct observer_object *self = (struct observer_object *)object;
	unsigned long long dwell_ns, retell_ns;
	int elsewhere, direction, grouped;
	unsigned int generation;

	if (!is_open(self) || !PyArg_ParseTuple(args, "KKpppI", &dwell_ns, &retell_ns, &elsewhere,
						&direction, &grouped, &generation))
		return NULL;
	self->skeleton->data->dwell_ns = dwell_ns;
	self->skeleton->data->retell_ns = retell_ns;
	self->skeleton->bss->elsewhere = elsewhere;
	self->skeleton->bss->want_direction = direction;
	self->skeleton->bss->grouped = grouped;
	/* Last: from now on its clauses are in force. */
	__atomic_store_n(&self->skeleton->bss->generation, generation, __ATOMIC_RELEASE);
	Py_RETURN_NONE;
}

/* Last of what `watch` says: sockets ask anew which NIC they are of. */
static PyObject *observer_watching(PyObject *object, PyObject *args)
{
	struct observer_object *self = (struct observer_object *)object;
	unsigned int watching;

	if (!is_open(self) || !PyArg_ParseTuple(args, "I", &watching))
		return NULL;
	__atomic_store_n(&self->skeleton->data->watching, watching, __ATOMIC_RELEASE);
	Py_RETURN_NONE;
}

static PyObject *observer_reads(PyObject *object, PyObject *args)
{
	struct observer_object *self = (struct observer_object *)object;
	int cpus = libbpf_num_possible_cpus();
	unsigned long long local = 0, remote = 0, unseen = 0;
	unsigned int nic;

	if (!is_open(self) || !PyArg_ParseTuple(args, "I", &nic))
		return NULL;
	if (cpus < 0)
		return ext_oserror(-cpus, "count CPUs");

	struct read_counters *each = malloc((size_t)cpus * sizeof(*each));

	if (!each)
		return PyErr_NoMemory();
	if (bpf_map_lookup_elem(bpf_map__fd(self->skeleton->maps.reads), &nic, each)) {
		free(each);
		return ext_oserror(errno, "read the observer's counters");
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		local += each[cpu].local;
		remote += each[cpu].remote;
		unseen += each[cpu].unseen;
	}
	free(each);
	return Py_BuildValue("(KKK)", local, remote, unseen);
}

static PyObject *observer_fileno(PyObject *object, PyObject *unused)
{
	struct observer_object *self = (struct observer_object *)object;

	(void)unused;
	return is_open(self) ? PyLong_FromLong(ring_buffer__epoll_fd(self->ring)) : NULL;
}

static PyObject *observer_map(PyObject *object, PyObject *args)
{
	struct observer_object *self = (struct observer_object *)object;
	const char *name;
	int fd;

	if (!is_open(self) || !PyArg_ParseTuple(args, "s", &name))
		return NULL;
	fd = bpf_object__find_map_fd_by_name(self->skeleton->obj, name);
	return fd < 0 ? PyErr_Format(PyExc_KeyError, "no map %s", name) : PyLong_FromLong(fd);
}

static PyObject *observer_lost(PyObject *object, PyObject *unused)
{
	struct observer_object *self = (struct observer_object *)object;

	(void)unused;
	return is_open(self) ? PyLong_FromUnsignedLongLong(self->skeleton->bss->lost) : NULL;
}

static PyObject *observer_drain(PyObject *object, PyObject *unused)
{
	struct observer_object *self = (struct observer_object *)object;
	int error;

	(void)unused;
	if (!is_open(self))
		return NULL;
	self->drained.used = 0;
	EXT_BEGIN_BUSY(self)
	error = ring_buffer__consume(self->ring);
	EXT_END_BUSY(self)
	if (error < 0 && error != -EAGAIN)
		return ext_oserror(-error, "drain the observer's ring buffer");
	return PyBytes_FromStringAndSize(self->drained.bytes ? self->drained.bytes : "",
					 self->drained.used);
}

static PyObject *observer_sockets(PyObject *object, PyObject *args)
{
	struct observer_object *self = (struct observer_object *)object;
	const char *which;
	struct buffer rows = { 0 };
	struct bpf_link *link;
	int netns = -1, fd, error;
	PyObject *result;

	if (!is_open(self) || !PyArg_ParseTuple(args, "s|i", &which, &netns))
		return NULL;
	link = !strcmp(which, "tcp") ? self->tcp :
	       !strcmp(which, "udp") ? self->udp :
	       !strcmp(which, "told") ? self->told :
					NULL;
	if (!link)
		return PyErr_Format(PyExc_ValueError, "no socket iterator %s", which);
	/* The socket iterators walk the namespace of the task that opens them. */
	int home = ext_enter_netns(netns);

	if (home < -1)
		return ext_oserror(-home - 1, "enter the network namespace");
	fd = bpf_iter_create(bpf_link__fd(link));
	error = fd < 0 ? errno : 0;
	ext_leave_netns(home);
	if (fd < 0)
		return ext_oserror(error, "open the socket iterator");
	EXT_BEGIN_BUSY(self)
	error = buffer_read(fd, &rows);
	EXT_END_BUSY(self)
	close(fd);
	result = error ? ext_oserror(-error, "read the socket iterator")
		       : PyBytes_FromStringAndSize(rows.bytes ? rows.bytes : "", rows.used);
	free(rows.bytes);
	return result;
}

static PyMethodDef methods[] = {
	{ "see_ends", observer_see_ends, METH_VARARGS,
	  "see_ends(cgroup): have the end of this cgroup's UDP sockets told; OSError: it cannot be." },
	{ "configure", observer_configure, METH_VARARGS,
	  "configure(dwell_ns, retell_ns, elsewhere, direction, grouped, generation)" },
	{ "watching", observer_watching, METH_VARARGS,
	  "watching(number): the map `napis` is another than under any earlier number." },
	{ "reads", observer_reads, METH_VARARGS,
	  "reads(nic) -> (local, remote, unseen): bytes, as struct read_counters, of all CPUs." },
	{ "fileno", observer_fileno, METH_NOARGS, "An epoll descriptor, readable when records wait." },
	{ "map", observer_map, METH_VARARGS, "map(name): descriptor of a map of the programs." },
	{ "lost", observer_lost, METH_NOARGS, "Records that found the ring buffer full." },
	{ "drain", observer_drain, METH_NOARGS, "Up to 512 waiting records (struct observer_record), packed." },
	{ "sockets", observer_sockets, METH_VARARGS,
	  "sockets('tcp'|'udp'|'told', netns_fd=-1) -> packed records" },
	{ "close", observer_close, METH_NOARGS, "Detach and unload." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, observer_new },
	{ Py_tp_dealloc, observer_dealloc },
	{ Py_tp_methods, methods },
	{ Py_tp_doc, "The BPF observer, loaded and attached; OSError when the kernel refuses it." },
	{ 0, NULL },
};

static PyType_Spec spec = {
	.name = "atfnd.bpf._bpf.Observer",
	.basicsize = sizeof(struct observer_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};

PyMethodDef observer_methods[] = { { NULL, NULL, 0, NULL } };

int observer_add_types(PyObject *module)
{
	PyObject *type = PyType_FromSpec(&spec);
	int error = type ? PyModule_AddObjectRef(module, "Observer", type) : -1;

	Py_XDECREF(type);
	return error;
}
