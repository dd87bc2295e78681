# SPDX-License-Identifier: GPL-2.0-or-later
"""A Debian kernel in QEMU on top of the host's own root: see README.md."""
