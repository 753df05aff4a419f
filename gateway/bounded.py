"""The one memory that forgets: a dictionary that is emptied when it is full. It keeps only what can be found out again.

A hit costs no more than a dictionary's. A cache that drops its oldest entry keeps the order of uses, at each hit. For
the results of a pure function there is ``functools.lru_cache``.
"""

from math import inf
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bounded(dict[Key, Value]):
    """Up to ``most`` values by key, with sizes of at most ``largest`` in sum. ``remember`` adds; else it is a dict."""

    __slots__ = ("_largest", "_most", "_size")

    def __init__(self, most: int, largest: float = inf) -> None:
        super().__init__()
        self._most, self._largest, self._size = most, largest, 0

    def remember(self, key: Key, value: Value, size: int = 0) -> Value:
        """Keep a value, and return it. Everything else is forgotten if there is no room.

        ``size``: what it adds to all that is kept. This counts until then, also if another value takes the key.
        """
        if (len(self) >= self._most and key not in self) or self._size + size > self._largest:
            self.clear()
        self._size += size
        self[key] = value
        return value

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._size = 0
