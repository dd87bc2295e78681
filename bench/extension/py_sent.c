/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Sent over the skeleton of sent.bpf.c. bpf(2); a refusal is an OSError with the kernel's
 * errno. Totals are returned as bytes in the layout of sent.h.
 */
#include "attached.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <string.h>

#include "sent.h"
#include "sent.skel.h"

struct given {
	unsigned int netns, ifindex, mask;
	int filters, locations; /* the classifier's maps, in place of its own */
	Py_buffer queues;
};

/* 0, or a negative errno. */
static int attach(struct sent *skeleton, const struct given *given)
{
	int error;

	if (given->queues.len != sizeof(skeleton->rodata->queue_of))
		return -EINVAL;
	skeleton->rodata->netns = given->netns;
	skeleton->rodata->ifindex = given->ifindex;
	skeleton->rodata->mask = given->mask;
	memcpy((void *)skeleton->rodata->queue_of, given->queues.buf, given->queues.len);
	error = bpf_map__reuse_fd(skeleton->maps.filters, given->filters);
	error = error ?: bpf_map__reuse_fd(skeleton->maps.locations, given->locations);
	error = error ?: sent__load(skeleton);
	return error ?: sent__attach(skeleton);
}

static int start(void **skeleton, const void *given)
{
	struct sent *made = *skeleton = sent__open();

	return made ? attach(made, given) : -errno;
}

static void destroy(void *skeleton)
{
	sent__destroy(skeleton);
}

static PyObject *sent_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "steer by transmitted packets", start, destroy };
	static char *names[] = {
		"netns", "ifindex", "filters", "locations", "mask", "queues", NULL
	};
	struct given given;
	PyObject *made;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "IIiiIy*", names, &given.netns,
					 &given.ifindex, &given.filters, &given.locations,
					 &given.mask, &given.queues))
		return NULL;
	made = attached_new(type, &kind, &given);
	PyBuffer_Release(&given.queues);
	return made;
}

static PyObject *sent_totals(PyObject *object, PyObject *unused)
{
	struct sent *skeleton = attached_skeleton(object);

	(void)unused;
	if (!skeleton)
		return NULL;
	return attached_totals(skeleton->maps.totals, sizeof(struct sent_totals),
			       "read what was moved");
}

const void *sent_program(size_t *size)
{
	return sent__elf_bytes(size);
}

static PyMethodDef methods[] = {
	{ "totals", sent_totals, METH_NOARGS, "bytes: struct sent_totals, one a possible CPU." },
	{ "close", attached_close, METH_NOARGS, "Detach and free; a second close does nothing." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc,
	  "Sent(netns, ifindex, filters, locations, mask, queues): what this device transmits "
	  "moves the filters of its flows, from now on." },
	{ Py_tp_new, sent_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec sent_type = {
	.name = "bench.extension._bench.Sent",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
