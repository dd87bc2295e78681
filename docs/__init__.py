# SPDX-License-Identifier: GPL-2.0-or-later
"""What writes pages of the documentation from the code: `make man`, `make docs`."""
