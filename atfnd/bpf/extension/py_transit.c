/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Transit over the skeleton of transit.bpf.c: flows on the move, and events. bpf(2); a
 * refusal is an OSError with the kernel's errno. Layouts are those of transit.h.
 */
#include "py_transit.h"

#include <bpf/bpf.h>
#include <errno.h>

static int attach(struct events *events, int cgroup)
{
	struct transit_object *self = (struct transit_object *)events;

	self->poll = bpf_program__attach(self->skeleton->progs.on_poll);
	if (self->poll)
		self->delivery = bpf_program__attach_cgroup(self->skeleton->progs.on_delivery,
							    cgroup);
	return self->delivery ? 0 : -errno;
}

static void detach(struct events *events)
{
	struct transit_object *self = (struct transit_object *)events;

	bpf_link__destroy(self->delivery);
	bpf_link__destroy(self->poll);
	self->delivery = self->poll = NULL;
}

static void release(struct events *events)
{
	struct transit_object *self = (struct transit_object *)events;

	transit_end_holds(self);
	detach(events);
	transit__destroy(self->skeleton);
	self->skeleton = NULL;
}

static const struct events_kind kind = {
	.name = "transit",
	.record_bytes = sizeof(struct transit_event),
	.attach = attach,
	.detach = detach,
	.release = release,
};

static int load(struct transit_object *self, unsigned int flows)
{
	int error;

	self->skeleton = transit__open();
	if (!self->skeleton)
		return -errno;
	error = bpf_map__set_max_entries(self->skeleton->maps.flows, flows);
	if (!error)
		error = transit__load(self->skeleton);
	self->backlogs.program = bpf_program__fd(self->skeleton->progs.read_backlog);
	self->backlogs.cpus = libbpf_num_possible_cpus();
	return error ? error
		     : events_open(&self->events, self->skeleton->obj, "events",
				   &self->skeleton->bss->lost);
}

static PyObject *transit_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static char *names[] = { "flows", NULL };
	struct transit_object *self;
	unsigned int flows = 1024;
	int error;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|I", names, &flows))
		return NULL;
	self = (struct transit_object *)events_new(type, &kind);
	if (!self)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = load(self, flows);
	Py_END_ALLOW_THREADS
	return events_made(&self->events, error, "load the transit programs");
}

static PyObject *transit_stop(PyObject *object, PyObject *unused)
{
	struct transit_object *self = events_opened(object);

	(void)unused;
	if (!self)
		return NULL;
	if (transit_in_hold(self, NULL))
		return ext_oserror(EBUSY, "detach the transit programs while a queue is quiesced");
	EXT_BEGIN_BUSY(&self->events)
	detach(&self->events);
	EXT_END_BUSY(&self->events)
	self->events.attached = 0;
	Py_RETURN_NONE;
}

const void *transit_program(size_t *size)
{
	return transit__elf_bytes(size);
}

static PyMethodDef transit_methods[] = {
	EVENTS_START,
	{ "stop", transit_stop, METH_NOARGS, "Detach; what was seen stays." },
	EVENTS_MAP,
	{ "watch", transit_watch, METH_VARARGS,
	  "watch(napi_id, tid): see its polls, and its thread (0: it has none); OSError." },
	{ "unwatch", transit_unwatch, METH_VARARGS, "unwatch(napi_id)" },
	{ "ask", transit_ask, METH_VARARGS,
	  "ask(napi_id, after_ns): when is all delivered that is in its ring then?" },
	{ "answer", transit_answer, METH_VARARGS, "answer(napi_id) -> ns, or None: not yet" },
	{ "polled", transit_polled, METH_VARARGS,
	  "polled(napi_id): when its last poll ended, and where." },
	{ "served", transit_served, METH_VARARGS,
	  "served(napi_id): packets and ns of polls without a pause." },
	{ "idle", transit_idle, METH_VARARGS,
	  "idle(napi_id): its ring is empty, its thread asleep." },
	{ "backlog_known", transit_backlog_known, METH_VARARGS,
	  "backlog_known(cpu) -> bool: it was polled since start()." },
	{ "mark_backlogs", transit_mark_backlogs, METH_NOARGS,
	  "Note how many packets the backlog of each CPU has been given; OSError." },
	{ "backlogs_passed", transit_backlogs_passed, METH_NOARGS,
	  "backlogs_passed() -> bool: they have delivered what was noted." },
	{ "quiesce", transit_quiesce, METH_VARARGS,
	  "quiesce(napi_a, napi_b, cpu, priority, ready_ns, until_ns) -> ns since when: keep B's "
	  "CPU, "
	  "and see\n"
	  "A deliver by ready_ns." },
	{ "quiesced", transit_quiesced, METH_VARARGS,
	  "quiesced(napi_b) -> bool: since quiesce() returned, without end." },
	{ "settle", transit_settle, METH_VARARGS,
	  "settle(napi_b, after_ns, hands_on): end it when A is drained of what is in its ring "
	  "then, and\n"
	  "with hands_on the backlogs of what A gave them." },
	{ "settled", transit_settled, METH_VARARGS,
	  "settled(napi_b, until_ns): wait for its end; False: not yet." },
	{ "resume", transit_resume, METH_VARARGS,
	  "resume(napi_b) -> (enum spinner_end, effective_ns, released_ns, when the backlogs "
	  "were\n"
	  "marked or 0, polls of B in between, and of each A its end, proof_ns and the ends of "
	  "two\n"
	  "polls: ended_ns, work, budget each). End it." },
	EVENTS_FILENO,
	EVENTS_LOST,
	EVENTS_DRAIN,
	EVENTS_CLOSE,
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot transit_slots[] = {
	{ Py_tp_doc, "Transit(flows=1024): what is delivered of flows that change their queue." },
	{ Py_tp_new, transit_new },
	{ Py_tp_dealloc, events_dealloc },
	{ Py_tp_methods, transit_methods },
	{ 0, NULL },
};

PyType_Spec transit_type = {
	.name = "atfnd.bpf._bpf.TransitPrograms",
	.basicsize = sizeof(struct transit_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = transit_slots,
};
