# SPDX-License-Identifier: GPL-2.0-or-later
"""What defers the interrupts of a queue: real NAPIs, which netlink is asked about as well."""

from __future__ import annotations

import errno

import pytest

from atfnd.kernel.interrupts.napi import Napi
from atfnd.kernel.netlink.netdev import NetdevFamily
from atfnd.model.reception import DEFER, OF_NAPI, SUSPEND, TIMEOUT
from tests.daemon.test_link import set_link
from tests.labs import Lab

NAMES = [f"{kind}:1" for kind in OF_NAPI]


def napi_of(lab: Lab, queue: int) -> Napi:
    """As the kernel lists it, without the code under test."""
    netdev, number = lab.nic.interface.netdev, lab.nic.queues()[queue].napi_id
    assert netdev is not None
    return next(napi for napi in netdev.napis(lab.nic.ifindex) or () if napi.id == number)


def test_each_value_is_of_one_queue(lab: Lab) -> None:
    before = lab.nic.settings()
    for value, name in enumerate(NAMES, 1000):
        assert lab.nic.setting(name) == "0"
        lab.nic.write_setting(name, str(value))
        assert lab.nic.setting(name) == str(value)
    napi = napi_of(lab, 1)
    found = napi.defer_hard_irqs, napi.gro_flush_timeout_ns, napi.irq_suspend_timeout_ns
    assert found == (1000, 1001, 1002)
    changed = {name for name, value in lab.nic.settings().items() if before[name] != value}
    assert changed == {*NAMES}
    lab.nic.write_setting(f"{TIMEOUT}:2", str(5 * 10**9))
    assert napi_of(lab, 2).gro_flush_timeout_ns == 5 * 10**9
    for name in (*NAMES, f"{TIMEOUT}:2"):
        lab.nic.write_setting(name, "0")
    assert lab.nic.settings() == before


def test_what_cannot_be_written_is_refused(lab: Lab) -> None:
    for name in (f"{DEFER}:99", f"{DEFER}:", DEFER, TIMEOUT, f"{SUSPEND}:x"):
        assert lab.nic.setting(name) is None
        with pytest.raises(KeyError):
            lab.nic.write_setting(name, "1")
    with pytest.raises(OSError, match="out of range") as refused:
        lab.nic.write_setting(f"{DEFER}:0", str(2**31))
    assert refused.value.errno == errno.ERANGE


def test_a_link_that_is_down_has_none_now(lab: Lab) -> None:
    set_link(lab, "down")
    try:
        assert not {*NAMES} & lab.nic.settings().keys()
        with pytest.raises(OSError, match="link is down") as refused:
            lab.nic.setting(NAMES[0])
        assert refused.value.errno == errno.ENETDOWN
    finally:
        set_link(lab, "up")


def test_an_old_kernel_has_them_of_the_interface(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before 6.13: no napi-set, and napi-get without these values."""
    listed = NetdevFamily.napis

    def without(family: NetdevFamily, ifindex: int) -> list[Napi]:
        return [Napi(*napi[:5]) for napi in listed(family, ifindex) or ()]

    monkeypatch.setattr(NetdevFamily, "napis", without)
    monkeypatch.setattr(NetdevFamily, "sets_napis", False)
    found = {name: value for name, value in lab.nic.settings().items() if "queue" not in name}
    assert (found[DEFER], found[TIMEOUT]) == ("0", "0")
    assert not {*NAMES} & found.keys()
    lab.nic.write_setting(TIMEOUT, "3000")
    assert lab.nic.setting(TIMEOUT) == "3000"
    assert lab.nic.interface.read("gro_flush_timeout") == "3000"
    lab.nic.write_setting(TIMEOUT, "0")
