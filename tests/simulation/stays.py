# SPDX-License-Identifier: GPL-2.0-or-later
"""Where threads stay, and whether a stay pays for a move of their flows: a model of
atfnd/bpf/programs/observer_stay.bpf.h, in its words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atfnd.observe import Price

__all__ = ["LEVELS", "WANDERS", "Stay", "Stays"]

LEVELS = 3  # CPU, LLC, node; this number itself: the whole machine
MAX_DOUBLINGS, IN_VAIN, RETURNS, WANDERS, EARLY_MOVES = 17, 2, 64, 4, 32


@dataclass(slots=True)
class Stay:
    """Of a thread in one part of the machine."""

    part: int
    since_ns: int
    lost_ns: float = 0.0
    moved_ns: int | None = None
    doublings: int = 0
    in_vain: bool = False
    back: int | None = None
    returned: bool = False


class Stays:
    """Of all threads, by tid."""

    def __init__(self, price: Price | None, parts: tuple[Mapping[int, int], ...]) -> None:
        self._of: dict[int, list[Stay]] = {}
        self.spent_until_ns = 0
        self.renew(price, parts)

    def renew(self, price: Price | None, parts: tuple[Mapping[int, int], ...]) -> None:
        """Other prices, or another machine."""
        self.price, self.levels = price or Price(0, (0, 0, 0), 0, 0), 1 + len(parts)
        self._parts = parts

    def known(self, tid: int) -> list[Stay] | None:
        return self._of.get(tid)

    def begin(self, tid: int, cpu: int, now_ns: int) -> None:
        """The thread is not known yet."""
        self._of[tid] = [Stay(self.part_of(cpu, level), now_ns) for level in range(LEVELS)]
        self._of[tid][0].doublings = self.price.doubt

    def part_of(self, cpu: int, level: int) -> int:
        if level == 0:
            return cpu
        return self._parts[level - 1].get(cpu, 0) if level <= len(self._parts) else 0

    def together(self, a: int | None, b: int | None, level: int) -> bool:
        if a is None or b is None or a < 0 or b < 0:
            return False
        return self.part_of(a, level) == self.part_of(b, level)

    def distance(self, cpu: int, rx: int | None) -> int:
        far = [level for level in range(1, LEVELS) if not self.together(cpu, rx, level)]
        return max(far, default=0) if rx is not None and rx >= 0 else 0

    def lose(self, tid: int, far: int, packets: float) -> None:
        """So many packets came from outside of the part of level `far`."""
        for stay in self._of[tid][: far + 1]:
            stay.lost_ns += packets * self.price.packet_ns[far]

    def migrated(self, tid: int, cpu: int, now_ns: int) -> None:
        for level, stay in enumerate(self._of.get(tid, ())):
            part = self.part_of(cpu, level)
            if stay.part != part:
                self._leave(stay, part, now_ns)
                stay.back = stay.part
                stay.part, stay.since_ns, stay.moved_ns, stay.lost_ns = part, now_ns, None, 0.0

    def _leave(self, stay: Stay, to: int, now_ns: int) -> None:
        needs_ns = self.price.patience_ns
        stayed_ns = now_ns - (stay.since_ns if stay.moved_ns is None else stay.moved_ns)
        returns = stay.back == to and stayed_ns < RETURNS * needs_ns
        to_and_fro, stay.returned = returns and stay.returned, returns
        if stay.moved_ns is None and stay.in_vain:
            return
        stay.in_vain = stay.moved_ns is not None and (stayed_ns < needs_ns or to_and_fro)
        if stay.in_vain:
            stay.doublings = min(stay.doublings + IN_VAIN, MAX_DOUBLINGS)
            return
        for _ in range(MAX_DOUBLINGS):
            if not stay.doublings or stayed_ns < needs_ns:
                break
            stay.doublings -= 1
            needs_ns *= 2

    def price_of(self, stay: Stay, now_ns: int) -> int:
        price_ns = (self.price.move_ns >> self.price.trust) << stay.doublings
        early = price_ns < self.price.move_ns
        return self.price.move_ns if early and self.spent_until_ns > now_ns else price_ns

    def _spend(self, now_ns: int) -> None:
        burst_ns = EARLY_MOVES * self.price.patience_ns
        self.spent_until_ns = max(self.spent_until_ns, now_ns - burst_ns) + self.price.patience_ns

    def home_of(self, tid: int) -> int:
        for level, stay in enumerate(self._of[tid][: self.levels]):
            if stay.doublings < WANDERS or stay.moved_ns is not None:
                return level
        return LEVELS

    def dear(self, tid: int, now_ns: int) -> list[int]:
        """What the stay must bring, by level."""
        home, least_ns, found = self.home_of(tid), 0, list[int]()
        for level, stay in enumerate(self._of[tid][: self.levels]):
            price_ns = self.price_of(stay, now_ns)
            found.append(max(price_ns, least_ns))
            if level == home:
                least_ns = price_ns
        return found

    def paid_level(self, tid: int, now_ns: int) -> int:
        pairs = zip(self._of[tid], self.dear(tid, now_ns), strict=False)
        paid = (level for level, (stay, dear_ns) in enumerate(pairs) if stay.lost_ns >= dear_ns)
        return next(paid, LEVELS)

    def moved(self, tid: int, home: int, cpu: int, rx: int | None, paid: bool, now_ns: int) -> None:
        price = self.price
        for level, stay in enumerate(self._of[tid]):
            away = level == 0 or (rx is not None and not self.together(cpu, rx, level))
            if level < home or stay.part != self.part_of(cpu, level) or not away:
                continue
            price_ns = self.price_of(stay, now_ns)
            if stay.moved_ns is None:
                stay.moved_ns = now_ns
            if paid:
                if level == home and price_ns < price.move_ns:
                    self._spend(now_ns)
                stay.lost_ns -= stay.lost_ns if level > home else min(price_ns, stay.lost_ns)
