/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Observer: loads and attaches observer.bpf.c, configures it and runs its socket
 * iterators.
 */
#include "events.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "netns.h"
#include "observer.h"
#include "observer.skel.h"

#define EVENT_PROGRAMS 4
/* Records and entries a call, so that many neither hold the loop nor grow the buffer. */
#define DRAINED 512
#define SURVEYED 512

struct observer_object {
	struct events events;
	struct observer *skeleton;
	struct bpf_link *attached[EVENT_PROGRAMS];
	struct bpf_link *tcp, *udp, *reported;
	struct bpf_link *ends; /* NULL: the end of UDP sockets is not seen */
};

static void release(struct events *events)
{
	struct observer_object *self = (struct observer_object *)events;
	struct bpf_link **links[] = { &self->tcp, &self->udp, &self->reported, &self->ends };

	for (int i = 0; i < EVENT_PROGRAMS; i++) {
		bpf_link__destroy(self->attached[i]);
		self->attached[i] = NULL;
	}
	for (size_t i = 0; i < sizeof(links) / sizeof(*links); i++) {
		bpf_link__destroy(*links[i]);
		*links[i] = NULL;
	}
	observer__destroy(self->skeleton);
	self->skeleton = NULL;
}

static const struct events_kind kind = {
	.name = "the observer",
	.record_bytes = sizeof(struct observer_record),
	.most = DRAINED,
	.release = release,
};

enum { NO_ENDS = 1, NO_REPORTED = 2, REFUSED = 4 };

/* With all programs, or else with as many as the kernel takes: some refuse that of UDP ends, some the
 * iterator over socket storage. */
static struct observer *loaded(void)
{
	for (int without = 0; without < REFUSED; without++) {
		struct observer *skeleton = observer__open();

		if (!skeleton)
			return NULL;
		bpf_program__set_autoload(skeleton->progs.on_release, !(without & NO_ENDS));
		bpf_program__set_autoload(skeleton->progs.each_reported, !(without & NO_REPORTED));
		if (!observer__load(skeleton))
			return skeleton;

		int error = errno;

		observer__destroy(skeleton);
		errno = error;
	}
	return NULL;
}

/* 0 or a negative errno; what was opened before a failure is released by the caller. */
static int open_all(struct observer_object *self, const char **what)
{
	struct bpf_program *programs[EVENT_PROGRAMS];
	union bpf_iter_link_info info = {};
	LIBBPF_OPTS(bpf_iter_attach_opts, options, .link_info = &info,
		    .link_info_len = sizeof(info));

	*what = "load the observer's BPF programs";
	self->skeleton = loaded();
	if (!self->skeleton)
		return -errno;
	*what = "attach the observer's tracepoints";
	programs[0] = self->skeleton->progs.on_recv;
	programs[1] = self->skeleton->progs.on_send;
	programs[2] = self->skeleton->progs.on_state;
	programs[3] = self->skeleton->progs.on_migrate;
	for (int i = 0; i < EVENT_PROGRAMS; i++) {
		self->attached[i] = bpf_program__attach(programs[i]);
		if (!self->attached[i])
			return -errno;
	}
	*what = "attach the socket iterators";
	self->tcp = bpf_program__attach_iter(self->skeleton->progs.each_tcp, NULL);
	self->udp = bpf_program__attach_iter(self->skeleton->progs.each_udp, NULL);
	if (!self->tcp || !self->udp)
		return -errno;
	info.map.map_fd = bpf_map__fd(self->skeleton->maps.sockets);
	if (bpf_program__autoload(self->skeleton->progs.each_reported)) {
		self->reported = bpf_program__attach_iter(self->skeleton->progs.each_reported,
							  &options);
		if (!self->reported)
			return -errno;
	}
	*what = "map the observer's ring buffer";
	return events_open(&self->events, self->skeleton->obj, "records",
			   &self->skeleton->bss->lost);
}

static PyObject *observer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct observer_object *self;
	const char *what = NULL;
	int error;

	(void)kwargs;
	if (!PyArg_ParseTuple(args, ""))
		return NULL;
	self = (struct observer_object *)events_new(type, &kind);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = open_all(self, &what);
	Py_END_ALLOW_THREADS
	return events_made(&self->events, error, what);
}

static PyObject *observer_see_ends(PyObject *object, PyObject *args)
{
	struct observer_object *self = events_opened(object);
	int cgroup, error = 0;

	if (!self || !PyArg_ParseTuple(args, "i", &cgroup))
		return NULL;
	if (!self->ends) {
		EXT_BEGIN_BUSY(&self->events)
		self->ends = bpf_program__attach_cgroup(self->skeleton->progs.on_release, cgroup);
		error = self->ends ? 0 : errno;
		EXT_END_BUSY(&self->events)
	}
	if (error)
		return ext_oserror(error, "attach to the end of sockets");
	Py_RETURN_NONE;
}

static PyObject *observer_configure(PyObject *object, PyObject *args)
{
	struct observer_object *self = events_opened(object);
	unsigned long long dwell_ns, report_again_ns;
	int elsewhere, direction, grouped;
	unsigned int generation;
	Py_buffer prices;

	if (!self || !PyArg_ParseTuple(args, "KKy*pppI", &dwell_ns, &report_again_ns, &prices,
				       &elsewhere, &direction, &grouped, &generation))
		return NULL;
	if (prices.len != sizeof(self->skeleton->bss->prices)) {
		PyBuffer_Release(&prices);
		PyErr_SetString(PyExc_ValueError, "prices are a struct stay_prices");
		return NULL;
	}
	memcpy(&self->skeleton->bss->prices, prices.buf, sizeof(self->skeleton->bss->prices));
	PyBuffer_Release(&prices);
	self->skeleton->data->dwell_ns = dwell_ns;
	self->skeleton->data->report_again_ns = report_again_ns;
	self->skeleton->bss->elsewhere = elsewhere;
	self->skeleton->bss->want_direction = direction;
	self->skeleton->bss->grouped = grouped;
	/* Last: from now on its clauses are in force. */
	__atomic_store_n(&self->skeleton->bss->generation, generation, __ATOMIC_RELEASE);
	Py_RETURN_NONE;
}

/* The last step of `watch`: sockets look up again which NIC they belong to. */
static PyObject *observer_watching(PyObject *object, PyObject *args)
{
	struct observer_object *self = events_opened(object);
	unsigned int watching;

	if (!self || !PyArg_ParseTuple(args, "I", &watching))
		return NULL;
	__atomic_store_n(&self->skeleton->data->watching, watching, __ATOMIC_RELEASE);
	Py_RETURN_NONE;
}

static PyObject *observer_reads(PyObject *object, PyObject *args)
{
	struct observer_object *self = events_opened(object);
	int cpus = libbpf_num_possible_cpus();
	unsigned long long local = 0, remote = 0, unseen = 0;
	unsigned int nic;

	if (!self || !PyArg_ParseTuple(args, "I", &nic))
		return NULL;
	if (cpus < 0)
		return ext_oserror(-cpus, "count CPUs");

	struct read_counters *each = malloc((size_t)cpus * sizeof(*each));

	if (!each)
		return PyErr_NoMemory();
	if (bpf_map_lookup_elem(bpf_map__fd(self->skeleton->maps.reads), &nic, each)) {
		int error = errno;

		free(each);
		return ext_oserror(error, "read the observer's counters");
	}
	for (int cpu = 0; cpu < cpus; cpu++) {
		local += each[cpu].local;
		remote += each[cpu].remote;
		unseen += each[cpu].unseen;
	}
	free(each);
	return Py_BuildValue("(KKK)", local, remote, unseen);
}

static PyObject *observer_survey(PyObject *object, PyObject *args)
{
	struct observer_object *self = events_opened(object);
	int on;

	if (!self || !PyArg_ParseTuple(args, "p", &on))
		return NULL;
	__atomic_store_n(&self->skeleton->bss->surveying, on, __ATOMIC_RELEASE);
	Py_RETURN_NONE;
}

struct taken {
	struct survey_key keys[SURVEYED];
	struct survey_count counts[SURVEYED];
	__u32 entries;
};

/* Takes the first entries out of the map: 0 or a positive errno. */
static int take_survey(int map, struct taken *taken)
{
	__u64 batch = 0; /* where the map goes on: the next call finds that at its beginning */

	taken->entries = SURVEYED;
	if (!bpf_map_lookup_and_delete_batch(map, NULL, &batch, taken->keys, taken->counts,
					     &taken->entries, NULL))
		return 0;
	return errno == ENOENT ? 0 : errno; /* it came to the end of the map */
}

static PyObject *observer_surveyed(PyObject *object, PyObject *unused)
{
	struct observer_object *self = events_opened(object);
	struct taken *taken;
	PyObject *result;
	__u64 missed;
	int error;

	(void)unused;
	if (!self)
		return NULL;
	taken = malloc(sizeof(*taken));
	if (!taken)
		return PyErr_NoMemory();
	EXT_BEGIN_BUSY(&self->events)
	error = take_survey(bpf_map__fd(self->skeleton->maps.survey), taken);
	EXT_END_BUSY(&self->events)
	missed = __atomic_exchange_n(&self->skeleton->bss->not_surveyed, 0, __ATOMIC_RELAXED);
	result = error ? ext_oserror(error, "read the survey")
		       : Py_BuildValue("(y#y#K)", (char *)taken->keys,
				       (Py_ssize_t)(taken->entries * sizeof(*taken->keys)),
				       (char *)taken->counts,
				       (Py_ssize_t)(taken->entries * sizeof(*taken->counts)),
				       missed);
	free(taken);
	return result;
}

struct opening {
	struct bpf_link *link;
	int fd, error;
};

/* The socket iterators walk the namespace of the task that opens them. */
static void open_iterator(void *argument)
{
	struct opening *opening = argument;

	opening->fd = bpf_iter_create(bpf_link__fd(opening->link));
	opening->error = opening->fd < 0 ? errno : 0;
}

/* 0 or a positive errno; EBADMSG: what came is no whole records. */
static int read_rows(struct bpf_link *link, int netns, struct buffer *rows)
{
	struct opening opening = { .link = link };
	int error = netns_call(netns, open_iterator, &opening);

	if (error || opening.error)
		return error ? error : opening.error;
	error = -buffer_read(opening.fd, rows);
	close(opening.fd);
	return error ? error : rows->used % sizeof(struct observer_record) ? EBADMSG : 0;
}

static PyObject *observer_sockets(PyObject *object, PyObject *args)
{
	struct observer_object *self = events_opened(object);
	const char *which;
	struct buffer rows = { 0 };
	struct bpf_link *link;
	int netns = -1, error;
	PyObject *result;

	if (!self || !PyArg_ParseTuple(args, "s|i", &which, &netns))
		return NULL;
	link = !strcmp(which, "tcp")	    ? self->tcp
	       : !strcmp(which, "udp")	    ? self->udp
	       : !strcmp(which, "reported") ? self->reported
					    : NULL;
	if (!link)
		return PyErr_Format(PyExc_ValueError, "no socket iterator %s", which);
	EXT_BEGIN_BUSY(&self->events)
	error = read_rows(link, netns, &rows);
	EXT_END_BUSY(&self->events)
	result = error ? ext_oserror(error, "read the socket iterator")
		       : PyBytes_FromStringAndSize(rows.bytes ? rows.bytes : "", rows.used);
	free(rows.bytes);
	return result;
}

static PyObject *observer_lists_reported(PyObject *object, PyObject *none)
{
	struct observer_object *self = events_opened(object);

	(void)none;
	return self ? PyBool_FromLong(self->reported != NULL) : NULL;
}

const void *observer_program(size_t *size)
{
	return observer__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "see_ends", observer_see_ends, METH_VARARGS,
	  "see_ends(cgroup): report the end of this cgroup's UDP sockets; OSError." },
	{ "configure", observer_configure, METH_VARARGS,
	  "configure(dwell_ns, report_again_ns, prices, elsewhere, direction, grouped, "
	  "generation)" },
	{ "watching", observer_watching, METH_VARARGS,
	  "watching(number): the map `napis` is another than under any earlier number." },
	{ "reads", observer_reads, METH_VARARGS,
	  "reads(nic) -> (local, remote, unseen): bytes, as struct read_counters, of all CPUs." },
	{ "survey", observer_survey, METH_VARARGS,
	  "survey(on): count reads by thread and CPUs from now on, or no longer." },
	{ "surveyed", observer_surveyed, METH_NOARGS,
	  "surveyed() -> (keys, counts, missed): takes a part of what was counted, as struct "
	  "survey_key and survey_count, and the bytes that found no room; OSError." },
	{ "lists_reported", observer_lists_reported, METH_NOARGS,
	  "lists_reported() -> bool: `sockets` has 'reported'; some kernels refuse that "
	  "iterator." },
	{ "sockets", observer_sockets, METH_VARARGS,
	  "sockets('tcp'|'udp'|'reported', netns_fd=-1) -> packed records" },
	EVENTS_MAP,
	EVENTS_FILENO,
	EVENTS_LOST,
	EVENTS_DRAIN,
	EVENTS_CLOSE,
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_new, observer_new },
	{ Py_tp_dealloc, events_dealloc },
	{ Py_tp_methods, methods },
	{ Py_tp_doc, "The BPF observer, loaded and attached; OSError when the kernel refuses it." },
	{ 0, NULL },
};

PyType_Spec observer_type = {
	.name = "atfnd.bpf._bpf.ObserverPrograms",
	.basicsize = sizeof(struct observer_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
