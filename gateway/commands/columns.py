"""Columns of a terminal: which of them fit, how wide each is, and long texts shortened or folded. Pure.

Widths count cells of a terminal: a wide character takes two.
"""

from collections.abc import Mapping, Sequence

from rich.cells import cell_len

GAP = 2
"""Cells between two columns."""
_LEAST = 12
"""Cells that a long text needs to be told from others."""
_ELLIPSIS = "…"


def shorten(text: str, width: int) -> str:
    """Return a text of at most so many cells. A longer one loses its middle, because names differ at their ends."""
    if cell_len(text) <= width:
        return text
    if width < 3:
        return _ELLIPSIS[:width]
    head, tail = _head(text, (width - 1) - (width - 1) // 2), _head(text[::-1], (width - 1) // 2)[::-1]
    return f"{head}{_ELLIPSIS}{tail}"


def cut(text: str, width: int) -> str:
    """Return a text of at most so many cells. A longer one loses its end."""
    return text if cell_len(text) <= width else _head(text, width - 1) + _ELLIPSIS


def fold(text: str, width: int) -> list[str]:
    """Return a text as lines of at most so many cells, whole: they end between words, if a word is not longer."""
    lines: list[str] = []
    while cell_len(text) > width:
        # A character that is wider than the column has a line of its own.
        head = _head(text, width) or text[:1]
        if (end := head.rfind(" ")) > 0 and text[len(head) : len(head) + 1] != " ":
            head = text[:end]
        lines.append(head)
        text = text[len(head) :].removeprefix(" ")
    return [*lines, text]


def fit(wanted: Mapping[str, int], room: int, optional: Sequence[str], least: Mapping[str, int]) -> dict[str, int]:
    """Return the columns that fit into so many cells, in order, with their widths.

    ``wanted`` has the columns with the widths of their longest texts. Columns that are too wide together shrink, but
    each keeps its ``least`` width. If that is not enough, ``optional`` columns go, the first first.
    """
    widths = {name: width for name, width in wanted.items() if width}
    kept = {name: min(width, least.get(name, _LEAST)) for name, width in widths.items()}
    droppable = [name for name in optional if name in widths]
    while droppable and _total(kept) > room:
        del widths[droppable[0]], kept[droppable.pop(0)]
    excess = _total(widths) - room
    # The widest gives first, so that short columns stay whole. A very narrow terminal takes from all.
    for floor in (kept, dict.fromkeys(widths, 1)):
        while excess > 0 and (large := [name for name in widths if widths[name] > floor[name]]):
            widths[max(large, key=widths.__getitem__)] -= 1
            excess -= 1
    return widths


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + GAP * (len(widths) - 1)


def _head(text: str, width: int) -> str:
    kept = 0
    for number, character in enumerate(text):
        kept += cell_len(character)
        if kept > width:
            return text[:number]
    return text
