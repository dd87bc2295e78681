# SPDX-License-Identifier: GPL-2.0-or-later
"""Everything that is decided: events in, commands out, time as an argument. Pure."""
