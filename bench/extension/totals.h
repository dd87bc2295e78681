/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * What a program has counted, in the only element of a per-CPU array.
 */
#ifndef BENCH_TOTALS_H
#define BENCH_TOTALS_H

#include "ext.h"
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdlib.h>

/* Bytes: one value of `each` bytes a possible CPU. OSError: the kernel's, in trying to do `what`. */
static inline PyObject *ext_totals(const struct bpf_map *map, size_t each, const char *what)
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

#endif
