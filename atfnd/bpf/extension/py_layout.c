/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * The fields of a struct that crosses kernel and user space, from BTF. The Python side builds its struct
 * format from them, so the C header is the only place where the layout is written.
 */
#include "ext.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <string.h>

/* struct-module code of one field; arrays of bytes become "Ns", other arrays "Nc" of their element. */
static PyObject *field_code(const struct btf *btf, __u32 type_id)
{
	static const char unsigned_codes[] = "?BH?I???Q";
	const struct btf_type *type;
	__u32 count = 1;
	int resolved = btf__resolve_type(btf, type_id);

	type = btf__type_by_id(btf, resolved);
	if (type && btf_is_array(type)) {
		count = btf_array(type)->nelems;
		resolved = btf__resolve_type(btf, btf_array(type)->type);
		type = btf__type_by_id(btf, resolved);
		if (type && type->size == 1)
			return PyUnicode_FromFormat("%us", count);
	}
	if (!type || !btf_is_int(type) || type->size > 8 || unsigned_codes[type->size] == '?') {
		PyErr_SetString(PyExc_TypeError,
				"a crossing struct holds integers and arrays only");
		return NULL;
	}
	int code = unsigned_codes[type->size];

	if (btf_int_encoding(type) & BTF_INT_SIGNED)
		code += 'a' - 'A';
	return count == 1 ? PyUnicode_FromFormat("%c", code)
			  : PyUnicode_FromFormat("%u%c", count, code);
}

static PyObject *struct_fields(const struct btf *btf, const struct btf_type *type)
{
	const struct btf_member *member = btf_members(type);
	PyObject *fields = PyList_New(0);

	for (int i = 0; fields && i < btf_vlen(type); i++, member++) {
		PyObject *code = field_code(btf, member->type);
		PyObject *field = code ? Py_BuildValue("(sIN)",
						       btf__name_by_offset(btf, member->name_off),
						       member->offset / 8, code)
				       : NULL;

		if (!field || PyList_Append(fields, field)) {
			Py_XDECREF(field);
			Py_CLEAR(fields);
			break;
		}
		Py_DECREF(field);
	}
	return fields ? Py_BuildValue("(IN)", type->size, fields) : NULL;
}

PyObject *ext_layout(const struct ext_program programs[], PyObject *args)
{
	const char *program, *name;
	const void *bytes;
	size_t size;

	if (!PyArg_ParseTuple(args, "ss", &program, &name))
		return NULL;
	while (programs->name && strcmp(programs->name, program))
		programs++;
	if (!programs->name)
		return PyErr_Format(PyExc_KeyError, "no BPF object named %s", program);
	bytes = programs->bytes(&size);

	struct bpf_object *object = bpf_object__open_mem(bytes, size, NULL);

	if (!object)
		return ext_oserror(errno, "open BPF object");

	struct btf *btf = bpf_object__btf(object);
	int id = btf ? btf__find_by_name_kind(btf, name, BTF_KIND_STRUCT) : -ENOENT;
	PyObject *result = id < 0 ? PyErr_Format(PyExc_KeyError, "no struct %s in %s", name,
						 program)
				  : struct_fields(btf, btf__type_by_id(btf, id));

	bpf_object__close(object);
	return result;
}
