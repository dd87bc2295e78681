# SPDX-License-Identifier: GPL-2.0-or-later
"""The benches as a folder for somebody else's machine: `make kit` packs it, `./run` there measures
and writes one report (docs/internals/bench.md)."""

__all__: list[str] = []
