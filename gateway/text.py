"""How values are put into words: names with nothing hidden in them, times, ages, numbers.

Names come from anybody who may write. HTML in them is the templates' business, which escape everything; what is left
are characters that nobody sees, or that turn the text around them: they are shown as escapes.
"""

import unicodedata
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Categories of Unicode: control and format characters (those that turn the direction among them), surrogates, private
and unassigned characters, separators of lines and paragraphs."""

_BLANK = frozenset(
    map(chr, (0x34F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2800, 0x3164, 0xFFA0))
) | frozenset(map(chr, (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))))
"""Letters and marks that show nothing (Default_Ignorable_Code_Point), and the empty Braille pattern: names that differ
in them look alike."""

_UNITS = ((86400, "day", "days"), (3600, "hour", "hours"), (60, "minute", "minutes"), (1, "second", "seconds"))


def is_hidden(character: str) -> bool:
    """Whether a character is not what it looks like: it cannot be seen, or acts on its neighbours."""
    if " " <= character <= "~":
        return False
    category = unicodedata.category(character)
    return category in _HIDDEN or category == "Zs" or character in _BLANK


def pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The text in pieces; True for those that stand for hidden characters, and are escapes such as ``\\u202e``."""
    for hidden, run in groupby(text, is_hidden):
        yield "".join(_escape(character) if hidden else character for character in run), hidden


def visible(text: str) -> str:
    """The text with every hidden character as an escape."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(piece for piece, _ in pieces(text))


def _escape(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def machine_time(moment: datetime) -> str:
    """To the microsecond, in UTC, as ``<time datetime>`` wants it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def plain_time(moment: datetime) -> str:
    """To the second, in UTC: ``2026-03-01 04:05:06``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def span(length: timedelta) -> str:
    """A length of time in its two largest units: ``1 hour 4 minutes``, ``12 seconds``, ``340 ms``. Never negative."""
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
    """How long ago in its largest unit: ``3 minutes ago``; ``just now`` within a second, and for what is to come."""
    seconds = int((now - moment).total_seconds())
    for size, one, many in _UNITS:
        if count := max(0, seconds) // size:
            return f"{count} {one if count == 1 else many} ago"
    return "just now"


def number(count: int) -> str:
    """With separators, thin ones that do not break: ``12 345``."""
    return f"{count:,}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def size(octets: int) -> str:
    """A number of bytes as people say it: ``812 bytes``, ``3.4 MiB``."""
    if octets < 1024:
        return f"{octets} byte{'' if octets == 1 else 's'}"
    power = min((octets.bit_length() - 1) // 10, 4)
    return f"{octets / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
