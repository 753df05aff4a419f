"""Makes what breaks an invariant smaller: leaves out conversations, requests and cuts for as long as it breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from tests.fuzz.grammar import Conversation

_ITEM = TypeVar("_ITEM")


def smaller(conversations: list[Conversation], breaks: Callable[[list[Conversation]], bool]) -> list[Conversation]:
    """Leave out conversations, then what they are made of."""
    left = _fewer(conversations, lambda tried: breaks(list(tried)))
    for number in range(len(left)):
        left = _one_smaller(left, number, breaks)
    return left


def _one_smaller(
    conversations: list[Conversation], number: int, breaks: Callable[[list[Conversation]], bool]
) -> list[Conversation]:
    one = conversations[number]

    def with_other(other: Conversation) -> list[Conversation]:
        return [*conversations[:number], other, *conversations[number + 1 :]]

    for other in (replace(one, cuts=[]), replace(one, pauses=[0.0])):
        if breaks(with_other(other)):
            one = other
            break
    kept = one
    parts = _fewer(kept.parts, lambda parts: breaks(with_other(replace(kept, parts=list(parts)))))
    return with_other(replace(kept, parts=parts))


def _fewer(items: list[_ITEM], breaks: Callable[[Sequence[_ITEM]], bool]) -> list[_ITEM]:
    """Return a part of the items that still breaks it: ever smaller stretches are left out."""
    size = len(items) // 2
    while size:
        at = 0
        while at < len(items) > 1:
            tried = items[:at] + items[at + size :]
            if tried and breaks(tried):
                items = tried
            else:
                at += size
        size //= 2
    return items
