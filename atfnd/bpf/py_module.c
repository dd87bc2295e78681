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

PyObject *ext_oserror(int err, const char *what)
{
	PyObject *args = Py_BuildValue("(iN)", err,
				       PyUnicode_FromFormat("%s: %s", what, strerror(err)));

	if (args) {
		PyErr_SetObject(PyExc_OSError, args);
		Py_DECREF(args);
	}
	return NULL;
}

int ext_is_free(int busy)
{
	if (busy)
		PyErr_SetString(PyExc_RuntimeError, "busy in another thread");
	return !busy;
}

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

static PyMethodDef module_methods[] = {
	{ "libbpf_message", libbpf_message, METH_NOARGS, "The last 16 KiB of what libbpf warned of." },
	{ NULL, NULL, 0, NULL },
};

static int module_exec(PyObject *module)
{
	PyMethodDef *tables[] = { layout_methods,     map_methods,   observer_methods,
				  classifier_methods, meter_methods, calls_methods,
				  sockdiag_methods,   clause_methods };

	libbpf_set_print(keep_message);
	for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++)
		if (PyModule_AddFunctions(module, tables[i]))
			return -1;
	if (observer_add_types(module) || meter_add_types(module) || sockdiag_add_types(module) ||
	    transit_add_types(module) || birth_add_types(module))
		return -1;
	return 0;
}

static PyModuleDef_Slot module_slots[] = {
	{ Py_mod_exec, module_exec },
	{ 0, NULL },
};

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_bpf",
	.m_doc = "libbpf skeletons, BPF maps and sock_diag.",
	.m_methods = module_methods,
	.m_slots = module_slots,
};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__bpf(void)
{
	return PyModuleDef_Init(&module_def);
}
