# SPDX-License-Identifier: GPL-2.0-or-later
"""Does steering pay? Slots with it and without it, compared under the same load. Pure.

`schedule` orders the slots, `slot` makes figures of two readings, `compare` says what differs.
"""
