# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnd: steers each flow's packets to the core its application runs on."""

__version__ = "0.1.0"
