# SPDX-License-Identifier: GPL-2.0-or-later
"""The kernel's own type information, without which no CO-RE program loads."""

from __future__ import annotations

from pathlib import Path

__all__ = ["kernel_has_btf"]


def kernel_has_btf() -> bool:
    """CONFIG_DEBUG_INFO_BTF: /sys/kernel/btf/vmlinux is there (Documentation/bpf/btf.rst)."""
    return Path("/sys/kernel/btf/vmlinux").exists()
