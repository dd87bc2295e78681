# SPDX-License-Identifier: GPL-2.0-or-later
"""The shell around the engine: what observes, what carries out, and what an operator asks for."""
