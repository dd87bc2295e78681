# SPDX-License-Identifier: GPL-2.0-or-later
"""Where the channels of interfaces that forward to each other are served."""
