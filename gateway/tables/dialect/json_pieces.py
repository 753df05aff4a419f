"""Reads large JSON bodies in pieces, each of which a parser reads in a few milliseconds.

A parser in C lets no other thread run until it returns. An array of rows is cut between two rows, and read piece by
piece. One row or one object cannot be cut, so it may have so many values and no more.
"""

import re
from collections.abc import Callable
from typing import Any

from gateway.errors import BodyTooLarge

PIECE = 64 * 1024
"""Bytes of a piece, at least."""
MAX_VALUES = 250_000
"""Values of one row, or of one object that is a body: a parser reads so many in about 20 ms."""

_TRIES = 8
_SPACE = re.compile(rb"[ \t\r\n]*")
_BETWEEN_ROWS = re.compile(rb"\}[ \t\r\n]*,(?=[ \t\r\n]*\{)")
_STRUCTURE = b"[{,"


def in_pieces(text: bytes, loads: Callable[[bytes], Any]) -> Any:
    """Return what ``loads`` returns for the whole text, but call it for pieces of a long array.

    Cutting is safe: if both sides of a cut are arrays of their own, a parser that reads the whole text sees the same
    elements. Raises what ``loads`` raises, and ``BodyTooLarge`` for too many values.
    """
    if len(text) <= PIECE:
        return loads(text)
    start, end = _bounds(text)
    if text[start : start + 1] != b"[" or text[end - 1 : end] != b"]":
        return _whole(text, loads)
    rows: list[Any] = []
    start, end = start + 1, end - 1
    while start < end:
        start, found = _next(text, start, end, loads)
        rows += found
    return rows


def _bounds(text: bytes) -> tuple[int, int]:
    """Return where the document begins and ends, without the white space around it."""
    begins, ends = _SPACE.match(text), len(text)
    while ends and text[ends - 1] in b" \t\r\n":
        ends -= 1
    return (begins.end() if begins else 0), ends


def _next(text: bytes, start: int, end: int, loads: Callable[[bytes], Any]) -> tuple[int, list[Any]]:
    """Return where the piece after this one starts, and the elements of this one."""
    size, tries = PIECE, _TRIES
    while start + size < end:
        for cut, _ in zip(_BETWEEN_ROWS.finditer(text, start + size, end), range(tries), strict=False):
            piece = text[start : cut.end() - 1]
            if len(piece) > 2 * size:
                break
            try:
                return cut.end(), _array(piece, loads)
            except ValueError:
                continue  # the cut is inside a row, or the body is no JSON
        size, tries = 2 * size, 2
    return end, _array(text[start:end], loads)


def _array(piece: bytes, loads: Callable[[bytes], Any]) -> list[Any]:
    found: list[Any] = _whole(b"[" + piece + b"]", loads)
    return found


def _whole(text: bytes, loads: Callable[[bytes], Any]) -> Any:
    if len(text) > 4 * PIECE and _values(text) > MAX_VALUES:
        raise BodyTooLarge(
            f"A row or an object of the body has more than {MAX_VALUES:,} values.",
            advice="Split the write, or send nested values as one string.",
        )
    return loads(text)


def _values(text: bytes) -> int:
    """Return how many values the text has, about: what stands inside strings counts only if little is outside."""
    rough = sum(_structure(text[at : at + PIECE]) for at in range(0, len(text), PIECE))
    return rough if rough <= MAX_VALUES else _exact(text)


def _exact(text: bytes) -> int:
    count, inside, start = 0, False, 0
    while start < len(text):
        end = min(start + PIECE, len(text))
        while end < len(text) and text[end - 1 : end] == b"\\":
            end += 1  # an escape is not cut
        piece = text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        parts = piece.split(b'"')
        count += sum(map(_structure, parts[inside::2]))
        inside ^= len(parts) % 2 == 0
        start = end
    return count


def _structure(text: bytes) -> int:
    return len(text) - len(text.translate(None, _STRUCTURE))
