/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "ext.h"

PyMethodDef observer_methods[] = {
	{ NULL, NULL, 0, NULL },
};

int observer_add_types(PyObject *module)
{
	(void)module;
	return 0;
}
