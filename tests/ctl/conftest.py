# SPDX-License-Identifier: GPL-2.0-or-later
"""The daemon of model values that `atfnctl` asks."""

from __future__ import annotations

from tests.serve.conftest import daemon

__all__ = ["daemon"]
