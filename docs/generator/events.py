"""The page of events: the lines of the log, from observe/events.py, and the reasons of entries."""

import inspect
import re
from collections.abc import Sequence
from unittest.mock import MagicMock

from docs.generator import markdown, page
from docs.generator.errors import answered
from gateway.errors import GatewayError
from gateway.fencing.record import EntryReason
from gateway.observe.events import LINES, Line

INTRODUCTION = """\
The log is JSON lines on standard error: `event` names the line, and each line has `level` and `timestamp`. A line about
a request also has its `request_id` and, in a trace, its `trace_id`. With several workers, each has its `worker`.
[Observability](../observability.md#log) describes the log, and [the record](../record.md) the entries that are kept."""


def make() -> str:
    """Return the page."""
    rows = [_row(kind, lines) for kind, lines in sorted(LINES.items(), key=lambda one: one[1][0].words)]
    return page(
        "Events",
        INTRODUCTION,
        "## Lines of the log",
        "\n".join(rows),
        "A storm of refused writes has at most 100 lines a second, and then `more writes refused, all on record` with "
        "the number `left_out`.",
        "## Reasons of entries",
        "Entries of [the record](../record.md#entries) about refusals and bypasses have one of these reasons:",
        f"{', '.join(_reason(one.value) for one in EntryReason)}.",
    )


def _reason(reason: str) -> str:
    """Return a reason, with a link if it is an error, too."""
    return (
        f"[`{reason}`](errors.md#{reason})" if reason in {one.code for one in answered(GatewayError)} else f"`{reason}`"
    )


def _row(kind: type, lines: Sequence[Line]) -> str:
    words = dict.fromkeys(f"`{line.words}`" for line in lines)
    levels = dict.fromkeys(line.level for line in lines)
    members = dict.fromkeys(name for line in lines for name in _members(kind, line))
    meaning = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0]
    fields = ", ".join(f"`{name}`" for name in members)
    text = markdown(re.sub(r" \(`+gateway\.[\w.]+`+\)", "", meaning))
    return f"- {', '.join(words)} ({', '.join(levels)}: {fields}). {text}"


def _members(kind: type, line: Line) -> list[str]:
    if callable(line.members):  # an event of which all is there shows what a line may have
        names = [*line.members(MagicMock())]
    else:
        names = [one.partition("=")[0] for one in line.members.split()] or [*kind.__annotations__]
    return [*names, "count"] if line.cause else names
