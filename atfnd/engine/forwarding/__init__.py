# SPDX-License-Identifier: GPL-2.0-or-later
"""What is forwarded: where channels are served."""
