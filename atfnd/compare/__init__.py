# SPDX-License-Identifier: GPL-2.0-or-later
"""Does it pay? What was tried is compared with the usual, under the same load. Pure.

`pairs` orders slots, `figures` reads them, `verdict` says what differs; `guard` tests pair by pair.
"""
