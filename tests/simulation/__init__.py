# SPDX-License-Identifier: GPL-2.0-or-later
"""A kernel and its NICs in memory, in virtual time, from one seed: docs/internals/simulation.md."""
