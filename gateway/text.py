"""Formats values for people: names without hidden characters, times, ages, numbers.

Names come from every caller that may write. Templates escape HTML in them. This module escapes characters that are
invisible, or that change the direction of the text around them.
"""

import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of Unicode: control and format characters (also those that change the direction), surrogates, private
and unassigned characters, separators of lines and paragraphs."""

_BLANK = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Invisible letters and marks (Default_Ignorable_Code_Point), and the empty Braille pattern. Names that differ only in
them look alike."""

_UNITS = ((86400, "day", "days"), (3600, "hour", "hours"), (60, "minute", "minutes"), (1, "second", "seconds"))


def is_hidden(character: str) -> bool:
    """Return whether a character is invisible, or changes its neighbours."""
    if " " <= character <= "~":
        return False
    category = unicodedata.category(character)
    return category in _HIDDEN or category == "Zs" or character in _BLANK


def is_sendable(key: str) -> bool:
    """Return whether a key can be sent in a header."""
    return key.isascii() and key.isprintable()


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Split text into pieces. True marks the escapes of hidden characters, such as ``\\u202e``."""
    for hidden, run in groupby(text, is_hidden):
        yield "".join(_escape(character) if hidden else character for character in run), hidden


def visible(text: str) -> str:
    """Return the text with every hidden character as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(piece for piece, _ in pieces(text))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def machine_time(moment: datetime) -> str:
    """Format a moment to the microsecond, in UTC, for ``<time datetime>``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain_time(moment: datetime) -> str:
    """Format a moment to the second, in UTC: ``2026-03-01 04:05:06``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(length: timedelta) -> str:
    """Format a length of time in its two largest units: ``1 hour 4 minutes``, ``340 ms``. It is never negative."""
    seconds = max(0.0, length.total_seconds())
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 10:
        return f"{seconds:.1f} seconds"
    left, words = round(seconds), []
    for size, one, many in _UNITS:
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {one if count == 1 else many}")
        elif words:
            break
    return " ".join(words[:2])


def age(moment: datetime, now: datetime) -> str:
    """Format an age in its largest unit: ``3 minutes ago``; ``just now`` within a second, and for the future."""
    seconds = int((now - moment).total_seconds())
    for size, one, many in _UNITS:
        if count := max(0, seconds) // size:
            return f"{count} {one if count == 1 else many} ago"
    return "just now"


def worded(value: object) -> str:
    """Format a value of JSON without its signs: ``action: write, on: table public.orders``; ``yes`` and ``none``."""
    match value:
        case None:
            return "none"
        case bool():
            return "yes" if value else "no"
        case dict():
            return ", ".join(f"{name}: {worded(one)}" for name, one in value.items()) or "none"
        case list():
            return ", ".join(map(worded, value)) or "none"
        case _:
            return str(value)


def number(count: int) -> str:
    """Format a count with narrow no-break spaces: ``12 345``."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(octets: int) -> str:
    """Format a number of bytes for people: ``812 bytes``, ``3.4 MiB``."""
    if octets < 1024:
        return f"{octets} byte{'' if octets == 1 else 's'}"
    power = min((octets.bit_length() - 1) // 10, 4)
    return f"{octets / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
