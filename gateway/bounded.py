"""The one memory that forgets: a dictionary that is emptied when it is full. It keeps only what can be found out again.

A hit costs no more than a dictionary's. A cache that drops its oldest entry keeps the order of uses, at each hit.
"""

from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Bounded(dict[Key, Value]):
    """Values by key, ``most`` at a time. ``remember`` adds; everything else is a dictionary's."""

    __slots__ = ("_most",)

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def remember(self, key: Key, value: Value) -> Value:
        """Keep a value, and return it. Everything else is forgotten if there is no room."""
        if len(self) >= self._most and key not in self:
            self.clear()
        self[key] = value
        return value
