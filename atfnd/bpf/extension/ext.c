/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What every file of an extension module needs: errors, the refusal of a second thread, types.
 */
#include "ext.h"

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

int ext_add(PyObject *module, PyMethodDef *const functions[], PyType_Spec *const types[])
{
	for (int i = 0; functions[i]; i++)
		if (PyModule_AddFunctions(module, functions[i]))
			return -1;
	for (int i = 0; types[i]; i++) {
		PyObject *type = PyType_FromSpec(types[i]);
		int failed = !type || PyModule_AddType(module, (PyTypeObject *)type);

		Py_XDECREF(type);
		if (failed)
			return -1;
	}
	return 0;
}
