# SPDX-License-Identifier: GPL-2.0-or-later
"""`atfnctl top`: a live view of flows, CPUs, queues and moves in a terminal.

look (the API's answers at one moment) -> figures (rates, by two looks) -> frame (what is drawn),
with view (what the keys changed) beside it; loop joins them to a terminal.
"""
