# SPDX-License-Identifier: GPL-2.0-or-later
"""What a daemon saw, as JSON lines, and what another policy would have decided by it."""
