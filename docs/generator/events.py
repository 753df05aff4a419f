"""The page of events: the lines of the log, from observe/logs.py, and the reasons of entries."""

import ast
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

from docs.generator import cell, page, table
from docs.generator.errors import answered
from gateway.errors import GatewayError
from gateway.fencing.record import EntryReason
from gateway.observe import events, logs

INTRODUCTION = """\
The log is JSON lines on standard error: `event` names the line, and each line has `level` and `timestamp`. A line about
a request also has its `request_id` and, in a trace, its `trace_id`. With several workers, each has its `worker`.
[Observability](../observability.md#log) describes the log, and [the record](../record.md) the entries that are kept."""


class Line(NamedTuple):
    """A line of the log: the class of its event, its texts, its levels, and its fields."""

    kind: str
    names: tuple[str, ...]
    levels: tuple[str, ...]
    fields: tuple[str, ...]


def make() -> str:
    """Return the page."""
    lines = list(written())
    rows = [
        (
            "<br>".join(f"`{name}`" for name in line.names),
            ", ".join(line.levels),
            ", ".join(f"`{field}`" for field in line.fields),
            cell(_meaning(line.kind)),
        )
        for line in lines
    ]
    return page(
        "Events",
        INTRODUCTION,
        "## Lines of the log",
        table(("event", "level", "fields", "meaning"), rows),
        "A storm of refused writes has at most 100 lines a second, and then `more writes refused, all on record` with "
        "the number `left_out`.",
        "## Reasons of entries",
        "Entries of [the record](../record.md#entries) about refusals and bypasses have one of these reasons:",
        "\n".join(f"- {_reason(one.value)}" for one in EntryReason),
    )


def _reason(reason: str) -> str:
    """Return a reason, with a link if it is an error, too."""
    return (
        f"[`{reason}`](errors.md#{reason})" if reason in {one.code for one in answered(GatewayError)} else f"`{reason}`"
    )


def _meaning(kind: str) -> str:
    text = inspect.cleandoc(getattr(events, kind).__doc__ or "").split("\n\n")[0]
    return re.sub(r" \(`+gateway\.[\w.]+`+\)", "", text)


def written() -> Iterator[Line]:
    """Yield the lines, as the functions of the log write them."""
    found: dict[str, Line] = {}
    for node in ast.walk(ast.parse(inspect.getsource(logs))):
        match node:
            case ast.match_case(pattern=ast.MatchClass(cls=ast.Name(id=kind)), body=body) if hasattr(events, kind):
                _keep(found, kind, body)
            case ast.FunctionDef(name="log_requests", body=body):
                _keep(found, "RequestAnswered", body)
    yield from sorted(found.values(), key=lambda line: line.names)


def _keep(found: dict[str, Line], kind: str, body: list[ast.stmt]) -> None:
    names, levels, fields = found.get(kind, Line(kind, (), (), ()))[1:]
    for call in (node for part in body for node in ast.walk(part) if isinstance(node, ast.Call)):
        texts = [one.value for one in ast.walk(call.args[0]) if isinstance(one, ast.Constant)] if call.args else []
        keywords = [one.arg for one in call.keywords if one.arg]
        if not texts or not keywords or not _writes(call.func):
            continue
        shown = [text for text in texts if isinstance(text, str)]
        names += tuple(text for text in shown if text not in names)
        fields += tuple(name for name in keywords if name not in fields)
        mentioned = [one.attr for part in body for one in ast.walk(part) if isinstance(one, ast.Attribute)]
        levels += tuple(level for level in ("info", "warning", "error") if level in mentioned and level not in levels)
    if names:
        found[kind] = Line(kind, names, levels, fields)


def _writes(function: ast.expr) -> bool:
    match function:
        case ast.Attribute(value=ast.Name(id="_logger")) | ast.Name(id="log_it"):
            return True
    return False
