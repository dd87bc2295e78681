/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * clauses_judge(clauses, facts): what the observer's BPF programs make of a policy's clauses, by the
 * same code, for tests.
 */
#include "ext.h"

#include <string.h>

#include "clause.h"

static PyObject *clauses_judge(PyObject *self, PyObject *args)
{
	struct clause_verdict verdict = CLAUSE_SILENT;
	struct clause_facts facts;
	struct clause clause;
	const char *clauses, *given;
	Py_ssize_t size, given_size;

	(void)self;
	if (!PyArg_ParseTuple(args, "y#y#", &clauses, &size, &given, &given_size))
		return NULL;
	if (size % sizeof(clause) || given_size != sizeof(facts))
		return PyErr_Format(PyExc_ValueError, "not whole structs");
	memcpy(&facts, given, sizeof(facts));
	for (Py_ssize_t at = 0; at < size; at += sizeof(clause)) {
		memcpy(&clause, clauses + at, sizeof(clause));
		if (clause_judge(&clause, &facts, &verdict))
			break;
	}
	return Py_BuildValue("KK", (unsigned long long)verdict.min_bytes,
			     (unsigned long long)verdict.min_age_ns);
}

PyMethodDef clause_methods[] = {
	{ "clauses_judge", clauses_judge, METH_VARARGS,
	  "clauses_judge(clauses, facts) -> (min_bytes, min_age_ns): when such a flow is reported "
	  "of." },
	{ NULL, NULL, 0, NULL },
};
