# SPDX-License-Identifier: GPL-2.0-or-later
"""Workloads: requests, numbered datagrams, frames.

Each program here is a process of its own inside a namespace (see `bench.children`), one thread
each, so that "the application's CPU" is the CPU that process is pinned to.
"""
