# SPDX-License-Identifier: GPL-2.0-or-later
"""docs/hardware.md is what the table of drivers says. `python -m tests.nic.test_hardware_page`
writes it anew: the prose above and below its tables is kept."""

from __future__ import annotations

from pathlib import Path

from atfnd.model import Actuator, Protocol
from atfnd.nic.driver_table import DRIVERS, driver_of
from atfnd.nic.drivers import Capacity, Driver, FlowTypes, Hashing, Loses, Masks, Overwrite, Placing

PAGE = Path(__file__).parents[2] / "docs/hardware.md"
BEGIN, END = "<!-- from atfnd/nic/driver_table.py -->\n", "<!-- end -->\n"

OPEN_FIELDS = {
    Masks.ANY: "yes",
    Masks.PER_TYPE: "one shape per flow type",
    Masks.ONE: "one shape for all",
    Masks.EXACT: "no",
    Masks.UNKNOWN: "probed",
}
MOVE = {
    Overwrite.IN_PLACE: "one write",
    Overwrite.GAP: "written over",
    Overwrite.BY_MATCH: "replaced, same location",
    Overwrite.ADDED: "added beside, old one deleted",
    Overwrite.REFUSED: "deleted and inserted by atfnd",
    Overwrite.TRY: "tried; else deleted and inserted by atfnd",
}


HASHES = {
    Hashing.AS_SAID: ["its RSS hash is the one that it says"],
    Hashing.TRANSFORM_AS_SAID: [
        "its RSS hash transforms its input by default, and Linux says so from 6.15 on; before, "
        "flows have to show it"
    ],
    Hashing.SEEN: [],
    Hashing.OWN: ["its RSS hash is its own, and is not computed"],
}


def types(of: FlowTypes) -> str:
    """`TCP UDP v4+v6, SCTP v4`."""
    names: dict[str, list[str]] = {}
    for protocol in Protocol:
        families = "+".join(f"v{family}" for family in (4, 6) if (family, int(protocol)) in of)
        if families:
            names.setdefault(families, []).append(protocol.name)
    return ", ".join(f"{' '.join(of_them)} {families}" for families, of_them in names.items())


def slots(driver: Driver) -> str:
    chooses = "the NIC chooses" if driver.placing is Placing.DRIVER else "atfnd chooses"
    if driver.capacity is Capacity.UNSAID or driver.slots:
        return f"{chooses}; {driver.slots or 'size unsaid'}"
    return f"{chooses}; size asked"


def steered(driver: Driver) -> str:
    return " | ".join(
        [
            f"`{driver.name}`",
            driver.nics,
            types(driver.types),
            OPEN_FIELDS[driver.masks],
            slots(driver),
            f"{driver.actuator.value}: {MOVE[driver.overwrite]}",
            ", ".join(loss.value for loss in Loses if loss in driver.loses) or "–",
            "may, with ntuple on" if driver.arfs else "no",
        ]
    )


def remarks(driver: Driver) -> list[str]:
    said = list(driver.gates_of("NIC"))
    if driver.asynchronous:
        said.append("a filter may be dropped after it was accepted")
    if driver.atr_flag:
        said.append(f"ATR is its private flag `{driver.atr_flag}`")
    return [*said, *HASHES[driver.hashing], *driver.quirks]


def page() -> str:
    """The generated part."""
    rules = [driver for driver in DRIVERS if driver.filters]
    lines = [
        "| driver | NICs | filters for | fields left open | location; slots | a move | lost on "
        "| aRFS |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {steered(driver)} |" for driver in rules),
        "",
        "Without 5-tuple filters:",
        "",
        "| driver | NICs | instead |",
        "|---|---|---|",
        *(f"| `{d.name}` | {d.nics} | {'; '.join(d.quirks)} |" for d in DRIVERS if not d.filters),
        "",
        "Worth knowing:",
        "",
        *(f"- `{d.name}`: {'; '.join(said)}." for d in rules if (said := remarks(d))),
    ]
    return "\n".join(lines) + "\n"


def current(text: str) -> str:
    before, rest = text.split(BEGIN)
    return before + BEGIN + page() + END + rest.split(END)[1]


def test_the_page_is_current() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == current(text), "python -m tests.nic.test_hardware_page"


def test_an_unknown_driver_is_expected_to_do_its_worst() -> None:
    for unknown in (driver_of("nobody0"), driver_of(None)):
        assert unknown.actuator is Actuator.LONG_GAP
        assert unknown.asynchronous
        assert (unknown.masks, unknown.overwrite) == (Masks.UNKNOWN, Overwrite.TRY)


def test_gates_name_the_interface() -> None:
    (ntuple,) = driver_of("ixgbe").gates_of("eth2")
    assert ntuple.endswith("ethtool -K eth2 ntuple on")
    assert all("{" not in gate for driver in DRIVERS for gate in driver.gates_of("eth2"))
    assert driver_of("rvu-nicpf").gates_of("eth2", ntuple_on=True) == (
        "it must be up: ip link set eth2 up",
    )


if __name__ == "__main__":
    PAGE.write_text(current(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
