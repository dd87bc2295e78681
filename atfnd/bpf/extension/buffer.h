/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * Bytes that grow: what a ring buffer or an iterator hands over in pieces, for one decode.
 */
#ifndef ATFND_BUFFER_H
#define ATFND_BUFFER_H

#include <stddef.h>

struct buffer {
	char *bytes;
	size_t used, size;
};

/* Room for so many bytes more: 0 or -ENOMEM, and then nothing has changed. */
int buffer_reserve(struct buffer *buffer, size_t more);

/* Appends what can be read from fd until its end: 0 or a negative errno. */
int buffer_read(int fd, struct buffer *buffer);

#endif
