# SPDX-License-Identifier: GPL-2.0-or-later
"""Tests of one real NIC, named by the environment variable NIC (`NIC=eth2 make test-nic`)."""
