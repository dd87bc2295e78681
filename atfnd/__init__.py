# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnd: delivers packets on the core of the application that reads them."""

__version__ = "1.0.0rc1"
