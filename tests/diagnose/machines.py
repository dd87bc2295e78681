# SPDX-License-Identifier: GPL-2.0-or-later
"""Machines as model values."""

from __future__ import annotations

from atfnd.model import Cpu, Node, Topology

__all__ = ["topology"]


def topology() -> Topology:
    """Two nodes of two cores of two threads: SMT (0 1)(2 3)(4 5)(6 7), cache (0-3)(4-7)."""
    return Topology(
        tuple(
            Cpu(n, True, n // 4, n // 4, n // 2, (n & ~1, n | 1), tuple(range(n & ~3, (n | 3) + 1)))
            for n in range(8)
        ),
        tuple(
            Node(n, tuple(range(4 * n, 4 * n + 4)), {m: 10 + 11 * (m != n) for m in range(2)})
            for n in range(2)
        ),
    )
