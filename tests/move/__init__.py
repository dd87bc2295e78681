# SPDX-License-Identifier: GPL-2.0-or-later
"""A model of a NIC with two rings and RSS's, which the real machine of the moves is run against."""
