"""Exports in Parquet: written from lines of NDJSON, and read as such lines again, so that the chain can be verified.

The command makes these files, not the gateway (docs/decisions/098). docs/audit.md describes the columns. A file keeps
each entry exactly: an entry whose line could not be had back from its columns is an error. The one door to pyarrow.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from gateway.errors import ConfigurationError, TokenMalformed
from gateway.fencing.chain_verification import Unreadable, parse, written
from gateway.fencing.merging import read_line
from gateway.fencing.token import Token
from gateway.text import machine_time

MAGIC = b"PAR1"
"""The first bytes of each file."""
FORMAT = 1
"""The version of the columns."""
DATABASE = "database"
"""The first column of an export of several databases, beside those of a single record."""
ABOUT = "fencing-gateway"
"""The key of the file's metadata: JSON with format, filters, entries, first, last and head."""

ROWS = 10_000
ROOM = 8 * 1024 * 1024
"""Of a row group: at most so many rows, or lines of so many bytes. That is what an export needs of memory."""
_READ = 2_000

# Column -> type. ``enum`` is a text with few values.
COLUMNS: Mapping[str, str] = {
    "position": "int64",
    "id": "string",
    "at": "moment",
    "kind": "enum",
    "plane": "enum",
    "rule": "string",
    "resource": "string",
    "reason": "enum",
    "enforced": "bool",
    "token_epoch": "int32",
    "token_value": "int64",
    "holder": "string",
    "caller": "string",
    "method": "enum",
    "target": "string",
    "client": "string",
    "request_id": "string",
    "payload_size": "int64",
    "payload_sha256": "string",
    "fence_epoch": "int32",
    "fence_value": "int64",
    "fence_holder": "string",
    "fence_caller": "string",
    "fence_raised_at": "moment",
    "details": "string",
    "hash": "string",
}
_MOMENTS = frozenset(name for name, kind in COLUMNS.items() if kind == "moment")
_TOKENS = ("token", "fence")

Row = dict[str, Any]


def write(lines: Iterable[bytes], file: BinaryIO, about: Mapping[str, Any], wrote: Callable[[int], None]) -> None:
    """Write the lines of an export. ``wrote`` gets the number of rows of each row group.

    ``about`` describes the export in the metadata of the file. Raises ``ConfigurationError`` without pyarrow, and for
    an entry that the columns cannot keep exactly.
    """
    arrow, parquet = _libraries()
    waiting = iter(lines)
    first = next(waiting, b"")
    several = read_line(first)[0] is not None
    schema = _schema(arrow, several=several)
    ends: dict[str | None, dict[str, Any]] = {}
    with parquet.ParquetWriter(file, schema, compression="zstd", compression_level=3) as writer:
        for rows in _groups(chain([first] if first else [], waiting), several=several):
            try:
                columns = [arrow.array([row[name] for row in rows], schema.field(name).type) for name in schema.names]
            except (arrow.ArrowInvalid, OverflowError) as error:
                raise _inexact(f"one of {rows[0]['position']} to {rows[-1]['position']}") from error
            writer.write_batch(arrow.record_batch(columns, schema=schema), row_group_size=ROWS)
            for row in rows:
                end = ends.setdefault(row.get(DATABASE), {"entries": 0, "first": row["position"]})
                end["entries"] += 1
                end["last"], end["head"] = row["position"], row["hash"]
            wrote(len(rows))
        # An export of several databases has an end of each.
        told = {"databases": ends} if several else ends.get(None, {"entries": 0, "first": 0, "last": 0, "head": ""})
        writer.add_key_value_metadata({ABOUT: json.dumps({"format": FORMAT, **about, **told})})


def read(path: Path) -> Iterator[bytes]:
    """Yield the lines that a file was written from, in pieces. Raises ``ConfigurationError`` for another file.

    Another program may have written the file anew with other types of the same values.
    """
    arrow, parquet = _libraries()
    try:
        with parquet.ParquetFile(path) as file:
            schema = _schema(arrow, plain=True, several=DATABASE in file.schema_arrow.names)
            if file.schema_arrow.names != schema.names:
                raise ConfigurationError(
                    f"{path}: is no Parquet export of the record: its columns are others", advice=""
                )
            for batch in file.iter_batches(_READ):
                rows = arrow.Table.from_batches([batch]).cast(schema).to_pylist()
                yield b"".join(_line(row) + b"\n" for row in rows)
    except (arrow.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = (str(error).splitlines() or [""])[0][:200]
        raise ConfigurationError(f"{path}: cannot be read as Parquet: {reason}", advice="") from error


def _libraries() -> tuple[Any, Any]:
    try:
        import pyarrow  # noqa: PLC0415 - a hundred megabytes that only this format needs
        from pyarrow import parquet  # noqa: PLC0415 - likewise
    except ImportError as error:
        advice = "Install it with pip install 'fencing-gateway[parquet]', or export NDJSON."
        raise ConfigurationError("Parquet needs the library pyarrow, which is not installed.", advice=advice) from error
    return pyarrow, parquet


def _schema(arrow: Any, *, plain: bool = False, several: bool = False) -> Any:
    types = {
        "int64": arrow.int64(),
        "int32": arrow.int32(),
        "bool": arrow.bool_(),
        "string": arrow.string(),
        "enum": arrow.string() if plain else arrow.dictionary(arrow.int32(), arrow.string()),
        "moment": arrow.timestamp("us", "UTC"),
    }
    never_null = (DATABASE, "position", "id", "at", "kind", "hash")
    columns = {**({DATABASE: "enum"} if several else {}), **COLUMNS}
    fields = [arrow.field(name, types[kind], plain or name not in never_null) for name, kind in columns.items()]
    return arrow.schema(fields)


def _groups(lines: Iterable[bytes], *, several: bool) -> Iterator[list[Row]]:
    rows: list[Row] = []
    room = ROOM
    for line in lines:
        name, own = read_line(line)
        if (name is not None) is not several:
            raise _inexact(f"{line[:60].decode(errors='replace')}…")
        rows.append({**_row(own), **({DATABASE: name} if several else {})})
        room -= len(line)
        if len(rows) == ROWS or room <= 0:
            yield rows
            rows, room = [], ROOM
    if rows:
        yield rows


def _row(line: bytes) -> Row:
    """Return the columns of a line."""
    try:
        entry = parse(line)
        row: Row = {name: entry[name] for name in COLUMNS if name in entry}
        for name in ("position", "payload_size"):
            row[name] = None if row[name] is None else int(row[name])
        for name in _TOKENS:
            token = None if entry[name] is None else Token.parse(entry[name])
            row[f"{name}_epoch"] = None if token is None else token.epoch
            row[f"{name}_value"] = None if token is None else token.value
        for name in _MOMENTS:
            row[name] = None if row[name] is None else datetime.fromisoformat(row[name])
        row["details"] = None if row["details"] is None else written(row["details"])
        if row.keys() == COLUMNS.keys() and _line(row) == line:
            return row
    except (Unreadable, TokenMalformed, LookupError, ValueError, TypeError):
        pass
    raise _inexact(f"{line[:60].decode(errors='replace')}…")


def _inexact(entry: str) -> ConfigurationError:
    return ConfigurationError(f"An entry cannot be kept in Parquet exactly: {entry}", advice="Export NDJSON instead.")


def _is_exact(details: str) -> bool:
    """Return whether a text is one value of JSON, as an export writes it.

    Others may close their line early, and have further lines in them: the row would pass for several entries.
    """
    try:
        members = parse(f'{{"details":{details}}}')
        return members.keys() == {"details"} and written(members["details"]) == details
    except (Unreadable, RecursionError):
        return False


def _line(row: Row) -> bytes:
    """Return the line of a row: the order of the members, and how they are written, are those of the export."""
    parts = [f'"{DATABASE}":{json.dumps(row[DATABASE])}'] if DATABASE in row else []
    for name, kind in COLUMNS.items():
        value = row[name]
        if name.endswith("_value"):
            continue
        if name.endswith("_epoch"):
            name = name.removesuffix("_epoch")  # noqa: PLW2901 - the member of both columns
            of_epoch = row[f"{name}_value"]
            value = None if value is None and of_epoch is None else str(Token(value, of_epoch))
        elif kind == "moment" and value is not None:
            value = machine_time(value)
        elif name == "details" and value is not None:
            parts.append(f'"details":{value if _is_exact(value) else json.dumps(value)}')
            continue
        parts.append(f'"{name}":{json.dumps(value, ensure_ascii=False)}')
    return ("{" + ",".join(parts) + "}").encode()
