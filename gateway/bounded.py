"""The one memory that forgets: a dictionary that is emptied when it is full. It keeps only what can be found out again.

A hit costs no more than a dictionary's. A cache that drops its oldest entry keeps the order of uses, at each hit. For
the results of a pure function there is ``functools.lru_cache``.
"""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bounded(dict[Key, Value]):
    """Values by key, ``most`` at a time and ``room`` in sizes. ``remember`` adds; all else is a dictionary's."""

    __slots__ = ("_most", "_room", "_size")

    def __init__(self, most: int, room: float = float("inf")) -> None:
        super().__init__()
        self._most, self._room, self._size = most, room, 0

    def remember(self, key: Key, value: Value, size: int = 0) -> Value:
        """Keep a value, and return it. Everything else is forgotten if there is no room."""
        if key not in self:
            if len(self) >= self._most or self._size + size > self._room:
                self.clear()
            self._size += size
        self[key] = value
        return value

    def clear(self) -> None:
        """Forget everything."""
        super().clear()
        self._size = 0
