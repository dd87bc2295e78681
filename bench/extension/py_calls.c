/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Two tight loops of socket calls, timed in CPU time, for the overhead bench: a loop in Python
 * would measure Python. socket(7); errors are OSError with the kernel's errno.
 */
#include "ext.h"

#include <errno.h>
#include <sys/socket.h>
#include <time.h>

/* CPU time of this thread: what others do on the machine is not ours to measure. */
static long long now_ns(void)
{
	struct timespec at;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
	return at.tv_sec * 1000000000LL + at.tv_nsec;
}

/* Both sockets are blocking and of one process, so a message is there when the receive starts. */
static PyObject *call_pairs(PyObject *self, PyObject *args)
{
	int sender, receiver, pairs, failed = 0;
	char message[64] = { 0 };
	long long began;

	(void)self;
	if (!PyArg_ParseTuple(args, "iii", &sender, &receiver, &pairs))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	began = now_ns();
	for (int i = 0; i < pairs && !failed; i++)
		if (send(sender, message, sizeof(message), 0) < 0 ||
		    recv(receiver, message, sizeof(message), 0) < 0)
			failed = errno;
	began = now_ns() - began;
	Py_END_ALLOW_THREADS
	return failed ? ext_oserror(failed, "send and receive") : PyLong_FromLongLong(began);
}

/* Receives of what is queued already, a byte each: the cheapest call that hands data over, with no
 * packet processed meanwhile, so what a tracepoint adds stands out most. */
static PyObject *byte_receives(PyObject *self, PyObject *args)
{
	int receiver, calls, failed = 0;
	long long began;
	char byte;

	(void)self;
	if (!PyArg_ParseTuple(args, "ii", &receiver, &calls))
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	began = now_ns();
	for (int i = 0; i < calls && !failed; i++) {
		ssize_t count = recv(receiver, &byte, 1, MSG_DONTWAIT);

		if (count < 0)
			failed = errno;
		else if (!count)
			failed = ECONNRESET;
	}
	began = now_ns() - began;
	Py_END_ALLOW_THREADS
	return failed ? ext_oserror(failed, "receive") : PyLong_FromLongLong(began);
}

PyMethodDef calls_methods[] = {
	{ "call_pairs", call_pairs, METH_VARARGS,
	  "call_pairs(send_fd, recv_fd, pairs) -> CPU ns for all pairs of a 64-byte send and "
	  "receive" },
	{ "byte_receives", byte_receives, METH_VARARGS,
	  "byte_receives(fd, calls) -> CPU ns for all calls of recv(1 byte) of queued data" },
	{ NULL, NULL, 0, NULL },
};
