/* SPDX-License-Identifier: GPL-2.0-or-later
 *
 * One call in another network namespace: for what stays in the namespace that it was made in.
 */
#ifndef ATFND_NETNS_H
#define ATFND_NETNS_H

/* Runs call(argument) in the namespace of this descriptor, or in our own (-1). 0, or a positive errno
 * when it cannot be entered: then nothing was called. */
int netns_call(int netns, void (*call)(void *argument), void *argument);

#endif
