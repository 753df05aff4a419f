"""Comma-separated values (RFC 4180) in bodies: a line of names, then a line for each row."""

import re

from gateway.errors import DialectError

MOST_VALUES = 1_000_000
"""In one body. They are read one by one, and other requests wait meanwhile."""

# One field with its end: a comma, the end of a line, or the end of all. The last group catches any other character.
_FIELD = re.compile(r'(?:"((?:[^"]++|"")*+)"|([^",\r\n]*+))(,|\r\n|\n|\r|\Z)|([\s\S])')
_LINE = re.compile(r"\r\n|\n|\r")


def parse(content: bytes) -> tuple[tuple[str, ...], list[dict[str, str | None]]]:
    """Return the names, and the rows by them. A bare ``NULL`` is null; in quotes it is a text, and nothing is an empty
    text.

    Raise PGRST102 unless the lines are equally long and the names differ.
    """
    lines = _lines(_decoded(content))
    if not lines or not any(lines[0]):
        raise _broken("Empty or invalid csv")
    names = tuple(name or "" for name in lines[0])
    if len(set(names)) != len(names):
        raise _broken("A name stands twice in the first line")
    if any(len(line) != len(names) for line in lines):
        raise _broken("All lines must have same number of fields")
    return names, [dict(zip(names, line, strict=True)) for line in lines[1:]]


def _decoded(content: bytes) -> str:
    try:
        # Spreadsheets begin a file with a byte order mark.
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _broken("Empty or invalid csv") from error


def _lines(text: str) -> list[list[str | None]]:
    if text.count(",") + text.count("\n") + text.count("\r") > MOST_VALUES:
        raise _broken(f"A body of this type has at most {MOST_VALUES} values")
    lines = _with_quotes(text) if '"' in text else _without_quotes(text)
    # An empty line is a row only where rows have a single field; what follows the end of the last line never is one.
    return [one for one in lines if one != [""] or len(lines[0]) == 1]


def _without_quotes(text: str) -> list[list[str | None]]:
    lines = _LINE.split(text)
    if not lines[-1]:
        lines.pop()
    return [[None if value == "NULL" else value for value in line.split(",")] for line in lines]


def _with_quotes(text: str) -> list[list[str | None]]:
    lines: list[list[str | None]] = []
    line: list[str | None] = []
    for match in _FIELD.finditer(text):
        quoted, bare, end, bad = match.groups()
        if bad is not None:
            raise _broken("Empty or invalid csv")
        if not end and match.start() == match.end() and not line:
            break  # nothing follows the end of the last line
        line.append(quoted.replace('""', '"') if quoted is not None else None if bare == "NULL" else bare)
        if end != ",":
            lines.append(line)
            line = []
        if not end:
            break
    return lines


def _broken(message: str) -> DialectError:
    return DialectError("PGRST102", 400, message)
