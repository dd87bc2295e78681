/* SPDX-License-Identifier: GPL-2.0-or-later */
#include "ext.h"

PyMethodDef classifier_methods[] = {
	{ NULL, NULL, 0, NULL },
};
