# SPDX-License-Identifier: GPL-2.0-or-later
"""A mapping that is a value: it can be compared and hashed, and a change makes another one. Pure.

The state of the moves is made of these, so that a checker can visit each state once.
"""

from __future__ import annotations

from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar

__all__ = ["FrozenMap"]

K = TypeVar("K")
V = TypeVar("V")


class FrozenMap(Mapping[K, V]):
    """Keeps the order in which keys came. A change copies it: meant for thousands, not millions."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        self._items = dict(items or {})

    def put(self, key: K, value: V) -> FrozenMap[K, V]:
        """With `key` set; a key that was here keeps its place."""
        return self._of({**self._items, key: value})

    def without(self, key: K) -> FrozenMap[K, V]:
        """Without `key`, whether it was here or not."""
        if key not in self._items:
            return self
        return self._of({k: v for k, v in self._items.items() if k != key})

    def items(self) -> ItemsView[K, V]:
        """As of a dict, without a call for each."""
        return self._items.items()

    def values(self) -> ValuesView[V]:
        """As of a dict, without a call for each."""
        return self._items.values()

    @classmethod
    def _of(cls, items: dict[K, V]) -> FrozenMap[K, V]:
        """From a dict that nothing else refers to."""
        made = cls()
        made._items = items
        return made

    def __getitem__(self, key: K) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FrozenMap):
            return NotImplemented
        return list(self._items.items()) == list(other._items.items())

    def __repr__(self) -> str:
        return f"FrozenMap({self._items!r})"
