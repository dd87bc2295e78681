/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * BPF maps by file descriptor: keys and values are bytes, sizes are the caller's affair (a mismatch
 * is checked against the map). bpf(2); errors are OSError with the kernel's errno.
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <stdlib.h>

/* The kernel copies a value for each possible CPU out of these: more than value_size. */
static int is_percpu(const struct bpf_map_info *info)
{
	return info->type == BPF_MAP_TYPE_PERCPU_ARRAY || info->type == BPF_MAP_TYPE_PERCPU_HASH ||
	       info->type == BPF_MAP_TYPE_LRU_PERCPU_HASH ||
	       info->type == BPF_MAP_TYPE_PERCPU_CGROUP_STORAGE;
}

static int map_info(int fd, struct bpf_map_info *info)
{
	__u32 length = sizeof(*info);

	memset(info, 0, sizeof(*info));
	if (bpf_obj_get_info_by_fd(fd, info, &length)) {
		ext_oserror(errno, "map info");
		return -1;
	}
	if (!is_percpu(info))
		return 0;
	PyErr_Format(PyExc_ValueError, "map %s has a value for each CPU", info->name);
	return -1;
}

/* Reads the map's sizes and checks the key against them; 0, or -1 with an exception set. */
static int map_with_key(int fd, Py_ssize_t key_length, struct bpf_map_info *info)
{
	if (map_info(fd, info))
		return -1;
	if (key_length == (Py_ssize_t)info->key_size)
		return 0;
	PyErr_Format(PyExc_ValueError, "key is %zd bytes, map %s wants %u", key_length, info->name,
		     info->key_size);
	return -1;
}

static PyObject *map_update(PyObject *self, PyObject *args)
{
	struct bpf_map_info info;
	const char *key, *value;
	Py_ssize_t key_length, value_length;
	int fd, flags = BPF_ANY;

	(void)self;
	if (!PyArg_ParseTuple(args, "iy#y#|i", &fd, &key, &key_length, &value, &value_length,
			      &flags))
		return NULL;
	if (map_with_key(fd, key_length, &info))
		return NULL;
	if (value_length != (Py_ssize_t)info.value_size)
		return PyErr_Format(PyExc_ValueError, "value is %zd bytes, map %s wants %u",
				    value_length, info.name, info.value_size);
	if (bpf_map_update_elem(fd, key, value, flags))
		return ext_oserror(errno, "map update");
	Py_RETURN_NONE;
}

/* The value of a key, taken out of the map if `take`. A key that is
 * missing is None, or to `take` an error. */
static PyObject *value_of(PyObject *args, int take)
{
	struct bpf_map_info info;
	const char *key;
	Py_ssize_t key_length;
	PyObject *result;
	int fd;

	if (!PyArg_ParseTuple(args, "iy#", &fd, &key, &key_length))
		return NULL;
	if (map_with_key(fd, key_length, &info))
		return NULL;

	void *value = malloc(info.value_size);

	if (!value)
		return PyErr_NoMemory();
	if (!(take ? bpf_map_lookup_and_delete_elem(fd, key, value)
		   : bpf_map_lookup_elem(fd, key, value)))
		result = PyBytes_FromStringAndSize(value, (Py_ssize_t)info.value_size);
	else if (errno == ENOENT && !take)
		result = Py_NewRef(Py_None);
	else
		result = ext_oserror(errno, take ? "map take" : "map lookup");
	free(value);
	return result;
}

static PyObject *map_lookup(PyObject *self, PyObject *args)
{
	(void)self;
	return value_of(args, 0);
}

static PyObject *map_take(PyObject *self, PyObject *args)
{
	(void)self;
	return value_of(args, 1);
}

static PyObject *map_delete(PyObject *self, PyObject *args)
{
	struct bpf_map_info info;
	const char *key;
	Py_ssize_t key_length;
	int fd;

	(void)self;
	if (!PyArg_ParseTuple(args, "iy#", &fd, &key, &key_length))
		return NULL;
	if (map_with_key(fd, key_length, &info))
		return NULL;
	if (bpf_map_delete_elem(fd, key))
		return ext_oserror(errno, "map delete");
	Py_RETURN_NONE;
}

/* A key deleted while we walk makes the kernel start over: the walk is bounded by max_entries, so a
 * churning map costs a repeated entry, never an endless loop. Callers key the result. */
static PyObject *map_items(PyObject *self, PyObject *args)
{
	struct bpf_map_info info;
	int fd;

	(void)self;
	if (!PyArg_ParseTuple(args, "i", &fd))
		return NULL;
	if (map_info(fd, &info))
		return NULL;

	char *key = malloc(info.key_size), *value = malloc(info.value_size);
	PyObject *list = key && value ? PyList_New(0) : PyErr_NoMemory();
	int first = 1;

	for (__u32 i = 0; list && i < info.max_entries; i++) {
		if (bpf_map_get_next_key(fd, first ? NULL : key, key)) {
			if (errno != ENOENT) { /* ENOENT: the end */
				ext_oserror(errno, "map walk");
				Py_CLEAR(list);
			}
			break;
		}
		first = 0;
		if (bpf_map_lookup_elem(fd, key, value))
			continue;
		PyObject *item = Py_BuildValue("(y#y#)", key, (Py_ssize_t)info.key_size, value,
					       (Py_ssize_t)info.value_size);

		if (!item || PyList_Append(list, item))
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	free(key);
	free(value);
	return list;
}

PyMethodDef map_methods[] = {
	{ "map_update", map_update, METH_VARARGS, "map_update(fd, key, value, flags=0)" },
	{ "map_lookup", map_lookup, METH_VARARGS, "map_lookup(fd, key) -> bytes or None" },
	{ "map_delete", map_delete, METH_VARARGS, "map_delete(fd, key)" },
	{ "map_take", map_take, METH_VARARGS,
	  "map_take(fd, key) -> bytes: look up and delete in one" },
	{ "map_items", map_items, METH_VARARGS, "map_items(fd) -> [(key, value), ...]" },
	{ NULL, NULL, 0, NULL },
};
