// SPDX-License-Identifier: GPL-2.0-or-later
#include "kernel_types.h"
#include <bpf/bpf_helpers.h>

char _license[] SEC("license") = "GPL";
