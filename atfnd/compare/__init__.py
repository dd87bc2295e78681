# SPDX-License-Identifier: GPL-2.0-or-later
"""Does it pay? What was tried is compared with the usual, under the same load. Pure.

`measure` takes pairs of slots: `pairs` orders them, `figures` reads them, `verdict` says what
differs. `guard` tests pair by pair. `auto` makes a `trial` of a few windows, now and then.
"""
