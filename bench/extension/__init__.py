# SPDX-License-Identifier: GPL-2.0-or-later
"""The extension module that benches and tests alone use: the meter, timed loops of socket calls."""

__all__: list[str] = []
