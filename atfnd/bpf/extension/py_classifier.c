/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Loading the lab NIC's classifier, and finding its maps again from a program id. Nothing is pinned:
 * the tc filter that uses the program keeps it and its maps alive (bpf(2); kernel/bpf/syscall.c).
 */
#include "ext.h"

#include <bpf/bpf.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "classifier.skel.h"

#define MOST_MAPS 8

/* A descriptor of the loaded program, or a negative errno. */
static int load_program(__u32 slots)
{
	struct classifier *skeleton = classifier__open();
	int fd;

	if (!skeleton)
		return -errno;
	bpf_map__set_max_entries(skeleton->maps.filters, slots);
	bpf_map__set_max_entries(skeleton->maps.locations, slots);
	fd = classifier__load(skeleton);
	if (!fd) {
		fd = fcntl(bpf_program__fd(skeleton->progs.classify), F_DUPFD_CLOEXEC, 0);
		fd = fd < 0 ? -errno : fd;
	}
	classifier__destroy(skeleton);
	return fd;
}

static PyObject *classifier_load(PyObject *self, PyObject *args)
{
	struct bpf_prog_info info = {};
	__u32 length = sizeof(info);
	unsigned int slots;
	int fd, err;

	(void)self;
	if (!PyArg_ParseTuple(args, "I", &slots))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	fd = load_program(slots);
	Py_END_ALLOW_THREADS
	if (fd < 0)
		return ext_oserror(-fd, "load the classifier");
	if (bpf_obj_get_info_by_fd(fd, &info, &length)) {
		err = errno;
		close(fd);
		return ext_oserror(err, "classifier info");
	}
	return Py_BuildValue("(iI)", fd, info.id);
}

/* Adds name -> (descriptor, value size, entries) to the dict; 0 or -1 with an exception set. */
static int add_map(PyObject *maps, __u32 id)
{
	struct bpf_map_info info = {};
	__u32 length = sizeof(info);
	int fd = bpf_map_get_fd_by_id(id);

	if (fd < 0) {
		ext_oserror(errno, "map by id");
		return -1;
	}
	if (bpf_obj_get_info_by_fd(fd, &info, &length)) {
		ext_oserror(errno, "map info");
		close(fd);
		return -1;
	}
	PyObject *entry = Py_BuildValue("(iII)", fd, info.value_size, info.max_entries);
	int err = entry ? PyDict_SetItemString(maps, info.name, entry) : -1;

	Py_XDECREF(entry);
	if (err)
		close(fd);
	return err;
}

static void close_maps(PyObject *maps)
{
	PyObject *name, *entry;
	Py_ssize_t at = 0;

	while (PyDict_Next(maps, &at, &name, &entry))
		close((int)PyLong_AsLong(PyTuple_GetItem(entry, 0)));
}

static PyObject *classifier_maps(PyObject *self, PyObject *args)
{
	__u32 ids[MOST_MAPS], length = sizeof(struct bpf_prog_info);
	struct bpf_prog_info info = { .nr_map_ids = MOST_MAPS, .map_ids = (__u64)(size_t)ids };
	unsigned int program;
	int fd, err;

	(void)self;
	if (!PyArg_ParseTuple(args, "I", &program))
		return NULL;
	fd = bpf_prog_get_fd_by_id(program);
	if (fd < 0)
		return ext_oserror(errno, "program by id");
	err = bpf_obj_get_info_by_fd(fd, &info, &length) ? errno : 0;
	close(fd);
	if (err)
		return ext_oserror(err, "program info");

	PyObject *maps = PyDict_New();

	for (__u32 i = 0; maps && i < info.nr_map_ids && i < MOST_MAPS; i++) {
		if (!add_map(maps, ids[i]))
			continue;
		close_maps(maps);
		Py_CLEAR(maps);
	}
	return maps;
}

const void *classifier_program(size_t *size)
{
	return classifier__elf_bytes(size);
}

PyMethodDef classifier_methods[] = {
	{ "classifier_load", classifier_load, METH_VARARGS,
	  "classifier_load(slots) -> (program fd, program id)" },
	{ "classifier_maps", classifier_maps, METH_VARARGS,
	  "classifier_maps(program id) -> {name: (fd, value size, entries)}; the caller closes" },
	{ NULL, NULL, 0, NULL },
};
