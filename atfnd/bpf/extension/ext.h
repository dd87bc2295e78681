/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What the files of an extension module share. One file per subject; its module file (py_module.c)
 * adds the table of functions and the types of each.
 */
#ifndef ATFND_EXT_H
#define ATFND_EXT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Sets OSError(err, "what: strerror") and returns NULL; err is a positive errno. */
PyObject *ext_oserror(int err, const char *what);

/* While a call of an object runs without the GIL, another thread can call the same object. It is
 * refused: each method and `close` asks ext_is_free() first, which is 1, or 0 with RuntimeError
 * set. `self` is any object with `int busy`. Its dealloc need not ask: every caller of an object
 * holds a reference. */
int ext_is_free(int busy);
/* clang-format off */
#define EXT_BEGIN_BUSY(self)   \
	(self)->busy = 1;      \
	Py_BEGIN_ALLOW_THREADS
#define EXT_END_BUSY(self)     \
	Py_END_ALLOW_THREADS   \
	(self)->busy = 0;
/* clang-format on */

/* Adds functions and types to a module; each table ends with NULL. 0 or -1 with an exception set. */
int ext_add(PyObject *module, PyMethodDef *const functions[], PyType_Spec *const types[]);

/* A BPF object that is compiled in, for ext_layout(). */
struct ext_program {
	const char *name;
	const void *(*bytes)(size_t *size);
};

/* layout(program, struct): the fields of a struct that crosses kernel and user space, read from the
 * BTF inside our own BPF object. `programs` ends with a name that is NULL. */
PyObject *ext_layout(const struct ext_program programs[], PyObject *args);

#endif
