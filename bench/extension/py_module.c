/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The module bench.extension._bench. CPython's limited API (3.11), as atfnd.bpf._bpf.
 */
#include "ext.h"

const void *meter_program(size_t *size);

static PyObject *layout(PyObject *self, PyObject *args)
{
	static const struct ext_program programs[] = {
		{ "meter", meter_program },
		{ NULL, NULL },
	};

	(void)self;
	return ext_layout(programs, args);
}

static PyMethodDef module_methods[] = {
	{ "layout", layout, METH_VARARGS,
	  "layout(program, struct) -> (size, [(field, offset, struct code), ...])" },
	{ NULL, NULL, 0, NULL },
};

extern PyMethodDef clause_methods[];
extern PyType_Spec meter_type;

static int module_exec(PyObject *module)
{
	PyMethodDef *const functions[] = { module_methods, clause_methods, NULL };
	PyType_Spec *const types[] = { &meter_type, NULL };

	return ext_add(module, functions, types);
}

static PyModuleDef_Slot module_slots[] = {
	{ Py_mod_exec, module_exec },
	{ 0, NULL },
};

static struct PyModuleDef module_def = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_bench",
	.m_doc = "The meter.",
	.m_slots = module_slots,
};

__attribute__((visibility("default"))) PyMODINIT_FUNC PyInit__bench(void)
{
	return PyModuleDef_Init(&module_def);
}
