/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The watched rings of type Transit: when has a queue delivered all it held? A ring is memory shared
 * with transit.bpf.c; bpf(2).
 */
#include "py_transit.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <unistd.h>

/* The ring with this NAPI id, NULL for none; id 0 is that of an unused one. */
static struct transit_ring *find_ring(struct transit_object *self, unsigned int napi_id)
{
	for (int i = 0; i < TRANSIT_RINGS; i++)
		if (self->skeleton->bss->rings[i].napi_id == napi_id)
			return &self->skeleton->bss->rings[i];
	return NULL;
}

struct transit_ring *transit_ring_of(struct transit_object *self, unsigned int napi_id)
{
	struct transit_ring *ring = napi_id ? find_ring(self, napi_id) : NULL;

	if (!ring)
		PyErr_Format(PyExc_KeyError, "NAPI %u is not watched", napi_id);
	return ring;
}

/* The ring that a call names by its only argument, or NULL with an exception set. */
static struct transit_ring *ring_asked(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	unsigned int napi_id;

	return self && PyArg_ParseTuple(args, "I", &napi_id) ? transit_ring_of(self, napi_id)
							     : NULL;
}

/* Has find_napi() look at one thread; 0 or a negative errno. */
static int find_napi(struct transit *skeleton, __u32 index, int tid)
{
	union bpf_iter_link_info info = { .task.tid = tid };
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info,
		    .link_info_len = sizeof(info));
	struct bpf_link *link = bpf_program__attach_iter(skeleton->progs.find_napi, &options);
	int fd = link ? bpf_iter_create(bpf_link__fd(link)) : -1, error = fd < 0 ? -errno : 0;
	char nothing;

	skeleton->bss->sought_tid = tid;
	skeleton->bss->sought_ring = index;
	if (!error && read(fd, &nothing, 1) < 0)
		error = -errno;
	if (fd >= 0)
		close(fd);
	bpf_link__destroy(link);
	return error;
}

PyObject *transit_watch(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	struct transit_ring *ring;
	unsigned int napi_id;
	int tid, error = 0;

	if (!self || !PyArg_ParseTuple(args, "Ii", &napi_id, &tid))
		return NULL;
	ring = find_ring(self, 0);
	if (find_ring(self, napi_id) || !ring)
		return ext_oserror(ring ? EEXIST : ENOSPC, "watch a NAPI");
	*ring = (struct transit_ring){ 0 };
	__atomic_store_n(&ring->napi_id, napi_id, __ATOMIC_SEQ_CST);
	if (tid)
		error = find_napi(self->skeleton, ring - self->skeleton->bss->rings, tid);
	if (error) {
		ring->napi_id = 0;
		return ext_oserror(-error, "find a NAPI by its thread");
	}
	Py_RETURN_NONE;
}

PyObject *transit_unwatch(PyObject *object, PyObject *args)
{
	struct transit_object *self = (struct transit_object *)object;
	struct transit_ring *ring = ring_asked(object, args);

	if (!ring)
		return NULL;
	if (transit_in_hold(self, ring))
		return ext_oserror(EBUSY, "unwatch a NAPI that is part of a hold");
	ring->napi_id = 0;
	Py_RETURN_NONE;
}

PyObject *transit_ask(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	unsigned long long after_ns;
	struct transit_ring *ring;
	unsigned int napi_id;

	if (!self || !PyArg_ParseTuple(args, "IK", &napi_id, &after_ns))
		return NULL;
	ring = transit_ring_of(self, napi_id);
	if (!ring)
		return NULL;
	__atomic_store_n(&ring->after_ns, after_ns, __ATOMIC_SEQ_CST);
	Py_RETURN_NONE;
}

PyObject *transit_answer(PyObject *object, PyObject *args)
{
	const volatile struct transit_ring *ring = ring_asked(object, args);

	if (!ring)
		return NULL;
	if (!ring->after_ns || ring->drained_after != ring->after_ns)
		Py_RETURN_NONE;
	return PyLong_FromUnsignedLongLong(ring->drained.ended_ns);
}

PyObject *transit_polled(PyObject *object, PyObject *args)
{
	struct transit_ring *ring = ring_asked(object, args);
	__u64 ended_ns;

	if (!ring)
		return NULL;
	ended_ns = __atomic_load_n(&ring->polled_ns, __ATOMIC_SEQ_CST);
	if (!ended_ns)
		Py_RETURN_NONE;
	return Py_BuildValue("KI", ended_ns, __atomic_load_n(&ring->polled_cpu, __ATOMIC_SEQ_CST));
}

PyObject *transit_served(PyObject *object, PyObject *args)
{
	struct transit_ring *ring = ring_asked(object, args);

	if (!ring)
		return NULL;
	return Py_BuildValue("KK", ring->served_packets, ring->served_ns);
}

PyObject *transit_idle(PyObject *object, PyObject *args)
{
	LIBBPF_OPTS(bpf_test_run_opts, run);
	struct transit_object *self = (struct transit_object *)object;
	struct transit_ring *ring = ring_asked(object, args);
	__u32 index;

	if (!ring)
		return NULL;
	index = ring - self->skeleton->bss->rings;
	run.ctx_in = &index;
	run.ctx_size_in = sizeof(index);
	if (bpf_prog_test_run_opts(bpf_program__fd(self->skeleton->progs.is_idle), &run))
		return ext_oserror(errno, "read a NAPI");
	return PyBool_FromLong(run.retval == 1);
}

PyObject *transit_mark_backlogs(PyObject *object, PyObject *unused)
{
	struct transit_object *self = events_opened(object);
	int error;

	(void)unused;
	if (!self)
		return NULL;
	error = backlogs_mark(&self->backlogs);
	if (error)
		return ext_oserror(-error, "read the backlogs of CPUs");
	Py_RETURN_NONE;
}

PyObject *transit_backlogs_passed(PyObject *object, PyObject *unused)
{
	struct transit_object *self = events_opened(object);

	(void)unused;
	return self ? PyBool_FromLong(backlogs_passed(&self->backlogs)) : NULL;
}

PyObject *transit_backlog_known(PyObject *object, PyObject *args)
{
	struct transit_object *self = events_opened(object);
	int cpu;

	if (!self || !PyArg_ParseTuple(args, "i", &cpu))
		return NULL;
	return PyBool_FromLong(backlogs_known(&self->backlogs, cpu));
}
