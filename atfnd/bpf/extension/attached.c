/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The life of an object over a skeleton: bpf(2); a refusal is an OSError with the kernel's errno.
 */
#include "attached.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

PyObject *attached_new(PyTypeObject *type, const struct attached_kind *kind, const void *given)
{
	allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
	struct attached_object *self = (struct attached_object *)allocate(type, 0);
	int error;

	if (!self)
		return NULL;
	self->kind = kind;
	EXT_BEGIN_BUSY(self)
	error = kind->start(&self->skeleton, given);
	EXT_END_BUSY(self)
	if (!error)
		return (PyObject *)self;
	Py_DECREF(self);
	return ext_oserror(-error, kind->what);
}

void *attached_skeleton(PyObject *object)
{
	struct attached_object *self = (struct attached_object *)object;

	if (!ext_is_free(self->busy))
		return NULL;
	if (!self->skeleton)
		ext_oserror(EBADF, self->kind->what);
	return self->skeleton;
}

PyObject *attached_close(PyObject *object, PyObject *unused)
{
	struct attached_object *self = (struct attached_object *)object;
	void *skeleton = self->skeleton;

	(void)unused;
	if (!ext_is_free(self->busy))
		return NULL;
	self->skeleton = NULL;
	EXT_BEGIN_BUSY(self)
	self->kind->destroy(skeleton);
	EXT_END_BUSY(self)
	Py_RETURN_NONE;
}

void attached_dealloc(PyObject *object)
{
	struct attached_object *self = (struct attached_object *)object;
	PyTypeObject *type = Py_TYPE(object);

	self->kind->destroy(self->skeleton);
	((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
	Py_DECREF(type);
}

PyObject *attached_totals(const struct bpf_map *map, size_t each, const char *what)
{
	int cpus = libbpf_num_possible_cpus();
	__u32 zero = 0;

	if (cpus < 0)
		return ext_oserror(-cpus, "count CPUs");

	size_t size = (size_t)cpus * each;
	void *value = malloc(size);
	PyObject *result;

	if (!value)
		return PyErr_NoMemory();
	if (bpf_map_lookup_elem(bpf_map__fd(map), &zero, value))
		result = ext_oserror(errno, what);
	else
		result = PyBytes_FromStringAndSize(value, (Py_ssize_t)size);
	free(value);
	return result;
}
