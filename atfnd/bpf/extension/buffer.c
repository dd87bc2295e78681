/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "buffer.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#define CHUNK (1 << 16)

int buffer_reserve(struct buffer *buffer, size_t more)
{
	size_t size = buffer->size ? buffer->size : CHUNK;
	char *bytes;

	while (size < buffer->used + more)
		size *= 2;
	if (size == buffer->size)
		return 0;
	bytes = realloc(buffer->bytes, size);
	if (!bytes)
		return -ENOMEM;
	buffer->bytes = bytes;
	buffer->size = size;
	return 0;
}

/* -EINTR is the kernel's "call again" of a signal, so it is retried. */
int buffer_read(int fd, struct buffer *buffer)
{
	for (;;) {
		ssize_t got;

		if (buffer_reserve(buffer, CHUNK))
			return -ENOMEM;
		got = read(fd, buffer->bytes + buffer->used, buffer->size - buffer->used);
		if (got == 0)
			return 0;
		if (got > 0)
			buffer->used += got;
		else if (errno != EINTR && errno != EAGAIN)
			return -errno;
	}
}
