/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the files of the extension module share. One file per subject; each exports one table of
 * functions, which py_module.c adds to the module.
 */
#ifndef ATFND_EXT_H
#define ATFND_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Sets OSError(err, "what: strerror") and returns NULL; err is a positive errno. */
PyObject *ext_oserror(int err, const char *what);

/* While a call of an object runs without the GIL, another thread can call the same object. It is refused:
 * each method and `close` asks ext_is_free() first, which is 1, or 0 with RuntimeError set. `self` is
 * any object with `int busy`. Its dealloc need not ask: whoever calls an object holds a reference. */
int ext_is_free(int busy);
#define EXT_BEGIN_BUSY(self)   \
	(self)->busy = 1;      \
	Py_BEGIN_ALLOW_THREADS
#define EXT_END_BUSY(self)     \
	Py_END_ALLOW_THREADS   \
	(self)->busy = 0;

/* Enters the namespace of descriptor netns (-1: stay). Returns what ext_leave_netns() wants, or a
 * value below -1, which is -errno - 1. Nothing may return to Python in between. */
int ext_enter_netns(int netns);
void ext_leave_netns(int home);

extern PyMethodDef layout_methods[];
extern PyMethodDef map_methods[];
extern PyMethodDef observer_methods[];
extern PyMethodDef classifier_methods[];
extern PyMethodDef meter_methods[];
extern PyMethodDef calls_methods[];
extern PyMethodDef sockdiag_methods[];
extern PyMethodDef clause_methods[];

/* Adds the file's types to the module; 0 or -1 with an exception set. */
int observer_add_types(PyObject *module);
int meter_add_types(PyObject *module);
int sockdiag_add_types(PyObject *module);
int transit_add_types(PyObject *module);
int birth_add_types(PyObject *module);

#endif
