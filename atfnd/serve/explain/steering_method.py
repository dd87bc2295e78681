# SPDX-License-Identifier: GPL-2.0-or-later
"""What a NIC steers by, and how a flow is delivered that no filter serves, in sentences. Pure."""

from __future__ import annotations

from atfnd.model import Flow, NicView, SteeringMethod
from atfnd.serve.api.views import placed

__all__ = ["by_entry", "by_port", "by_rfs", "in_the_shade", "method_link"]


def method_link(nic: NicView) -> list[str]:
    """Why there are no rules; empty where there are some."""
    return [] if nic.method is SteeringMethod.FILTERS else [f"{nic.name}: {nic.method_why}."]


def by_entry(flow: Flow) -> tuple[str, str | None]:
    """Its entry of the indirection table points to its core."""
    if flow.rx_cpu is None:
        return f"Steered, not yet verified: {flow.why}.", None
    if placed(flow):
        return f"Steered and verified: {flow.why}; its packets arrive on CPU {flow.rx_cpu}.", None
    return (
        f"Steered, yet packets are still seen on CPU {flow.rx_cpu}: {flow.why}.",
        "run explain again; if it stays so, look for RPS or RFS (queues/rx-*/rps_cpus, "
        "rps_flow_cnt), or a hash over other fields (ethtool -u IFACE rx-flow-hash)",
    )


def by_port(flow: Flow) -> tuple[str, str | None]:
    """Its port's rule leads it to its owner's queue."""
    if placed(flow):
        return f"Steered and verified: {flow.why}; its packets arrive on CPU {flow.rx_cpu}.", None
    return f"Steered, not yet verified: {flow.why}.", None


def in_the_shade(flow: Flow) -> tuple[str, str | None]:
    """Busier flows of another core hash to its entry."""
    return (
        f"Not on its core: {flow.why}. An entry points to one queue.",
        "run these applications on one CPU, or use a NIC with 5-tuple filters",
    )


def by_rfs(flow: Flow) -> tuple[str, str | None]:
    """The kernel hands its packets on."""
    if placed(flow) is False:
        return (
            f"RFS is on, yet its packets are processed on CPU {flow.rx_cpu}, not {flow.app_cpu}.",
            "RFS waits until earlier packets of the flow are processed; run explain again",
        )
    return f"Served in software: {flow.why}.", None
