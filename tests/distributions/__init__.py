# SPDX-License-Identifier: GPL-2.0-or-later
"""atfnd built, installed and used on other distributions: see docs/internals/testing.md."""
