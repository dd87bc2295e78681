/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The type Arrivals over the skeleton of arrivals.bpf.c, attached by rtnetlink in the caller's
 * network namespace. A refusal is an OSError with the kernel's errno.
 */
#include "attached.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>

#include "arrivals.h"
#include "arrivals.skel.h"

/* 0, or a negative errno. */
static int attach(struct arrivals *skeleton, int ifindex)
{
	LIBBPF_OPTS(bpf_tc_hook, hook, .ifindex = ifindex, .attach_point = BPF_TC_INGRESS);
	LIBBPF_OPTS(bpf_tc_opts, options, .handle = 1, .priority = 1);
	int error = arrivals__load(skeleton);

	if (error)
		return error;
	error = bpf_tc_hook_create(&hook);
	if (error && error != -EEXIST)
		return error;
	options.prog_fd = bpf_program__fd(skeleton->progs.arrive);
	return bpf_tc_attach(&hook, &options);
}

static int start(void **skeleton, const void *ifindex)
{
	struct arrivals *made = *skeleton = arrivals__open();

	return made ? attach(made, *(const int *)ifindex) : -errno;
}

static void destroy(void *skeleton)
{
	arrivals__destroy(skeleton);
}

static PyObject *arrivals_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	static const struct attached_kind kind = { "count the frames that arrive", start, destroy };
	static char *names[] = { "ifindex", NULL };
	int ifindex;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &ifindex))
		return NULL;
	return attached_new(type, &kind, &ifindex);
}

static PyMethodDef methods[] = {
	{ "close", attached_close, METH_NOARGS,
	  "Free the program; the classifier goes with its interface." },
	{ NULL, NULL, 0, NULL },
};

static PyType_Slot slots[] = {
	{ Py_tp_doc, "Arrivals(ifindex): stamped frames that come in there, dropped." },
	{ Py_tp_new, arrivals_new },
	{ Py_tp_dealloc, attached_dealloc },
	{ Py_tp_methods, methods },
	{ 0, NULL },
};

PyType_Spec arrivals_type = {
	.name = "bench.extension._bench.Arrivals",
	.basicsize = sizeof(struct attached_object),
	.flags = Py_TPFLAGS_DEFAULT,
	.slots = slots,
};
