/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The module atfnd.bpf._bpf: libbpf skeletons, BPF maps and sock_diag for Python. CPython's limited
 * API (3.11), so one build serves every later Python. Nothing here decides anything.
 */
#include "ext.h"

#include <bpf/libbpf.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>

/* libbpf explains a refused program at length, verifier log and all; its last words are kept. */
static char messages[16384];
static pthread_mutex_t messages_lock = PTHREAD_MUTEX_INITIALIZER; /* libbpf runs without the GIL */

static int keep_message(enum libbpf_print_level level, const char *format, va_list args)
{
	char message[sizeof(messages) / 2];
	size_t kept, added;

	if (level != LIBBPF_WARN)
		return 0;
	vsnprintf(message, sizeof(message), format, args);
	added = strlen(message);
	pthread_mutex_lock(&messages_lock);
	kept = strlen(messages);
	if (kept + added >= sizeof(messages)) {
		size_t forgotten = kept + added + 1 - sizeof(messages);

		memmove(messages, messages + forgotten, kept - forgotten + 1);
		kept -= forgotten;
	}
	memcpy(messages + kept, message, added + 1);
	pthread_mutex_unlock(&messages_lock);
	return 0;
}

static PyObject *libbpf_message(PyObject *self, PyObject *unused)
{
	PyObject *text;

	(void)self, (void)unused;
	pthread_mutex_lock(&messages_lock);
	text = PyUnicode_DecodeUTF8(messages, strlen(messages), "replace");
	pthread_mutex_unlock(&messages_lock);
	return text;
}

const void *observer_program(size_t *size);
const void *classifier_program(size_t *size);
const void *transit_program(size_t *size);
const void *birth_program(size_t *size);
const void *busy_program(size_t *size);
const void *pairs_program(size_t *size);

static PyObject *layout(PyObject *self, PyObject *args)
{
	static const struct ext_program programs[] = {
		{ "observer", observer_program },
		{ "classifier", classifier_program },
		{ "transit", transit_program },
		{ "birth", birth_program },
		{ "busy", busy_program },
		{ "pairs", pairs_program },
		{ NULL, NULL },
	};

	(void)self;
	return ext_layout(programs, args);
}

static PyMethodDef module_methods[] = {
	{ "libbpf_message", libbpf_message, METH_NOARGS,
	  "The last 16 KiB of what libbpf warned of." },
	{ "layout", layout, METH_VARARGS,
	  "layout(program, struct) -> (size, [(field, offset, struct code), ...])" },
	{ NULL, NULL, 0, NULL },
};

extern PyMethodDef map_methods[], classifier_methods[], sockdiag_methods[];
extern PyType_Spec observer_type, transit_type, birth_type, busy_type, pairs_type, sockdiag_type;
extern PyType_Spec listener_type;

static int module_exec(PyObject *module)
{
	PyMethodDef *const functions[] = { module_methods, map_methods, classifier_methods,
					   sockdiag_methods, NULL };
	PyType_Spec *const types[] = { &observer_type, &transit_type,  &birth_type,    &busy_type,
				       &pairs_type,    &sockdiag_type, &listener_type, NULL };

	libbpf_set_print(keep_message);
	return ext_add(module, functions, types);
}

static PyModuleDef_Slot module_slots[] = {
	{ Py_mod_exec, module_exec },
	{ 0, NULL },
};

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_bpf",
	.m_doc = "libbpf skeletons, BPF maps and sock_diag.",
	.m_slots = module_slots,
};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__bpf(void)
{
	return PyModuleDef_Init(&module_def);
}
