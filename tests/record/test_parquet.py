"""``gateway audit export --format parquet``: typed columns for other programs, and the chain still proves them."""

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute
import pytest
from pyarrow import parquet as files

from gateway.commands import parquet
from gateway.errors import ConfigurationError, GatewayError
from gateway.fencing.chain_verification import FIELDS
from tests.record.conftest import HOSTILE, Watched, refused, run
from tests.record.entries import everything, on_record, sealed


async def test_an_export_has_typed_columns(audited: Watched, tmp_path: Path) -> None:
    await sealed(audited.database, 40)
    output = tmp_path / "record.parquet"
    assert (await run("export", "--output", output)).exit_code == 0
    table = files.read_table(output)
    entries = await everything(audited.database)
    assert table.num_rows == len(entries) == 40
    types = {field.name: str(field.type) for field in table.schema}
    assert types == {
        **dict.fromkeys(types, "string"),
        **dict.fromkeys(("position", "token_value", "fence_value", "payload_size"), "int64"),
        **dict.fromkeys(("token_epoch", "fence_epoch"), "int32"),
        **dict.fromkeys(("at", "fence_raised_at"), "timestamp[us, tz=UTC]"),
        **dict.fromkeys(("kind", "plane", "reason", "method"), "dictionary<values=string, indices=int32, ordered=0>"),
        "enforced": "bool",
    }
    for row, entry in zip(table.to_pylist(), entries, strict=True):
        assert (row["position"], row["at"], row["kind"], row["hash"]) == (
            *(entry.position, entry.at, str(entry.kind), entry.hash),
        )
        assert entry.token is not None
        assert (row["token_epoch"], row["token_value"]) == (entry.token.epoch, entry.token.value)
        assert (row["enforced"], row["holder"], row["resource"]) == (entry.enforced, entry.holder, entry.resource)
    assert json.loads(read_about(output)) == {
        "format": 1,
        "filters": {"after": 0},
        "entries": 40,
        "first": 1,
        "last": 40,
        "head": entries[-1].hash,
    }


def read_about(path: Path) -> str:
    """Return the metadata of a file."""
    return str(files.ParquetFile(path).metadata.metadata[b"fencing-gateway"].decode())


def test_the_columns_are_those_of_the_export() -> None:
    """Files are kept for years: a new member of entries needs a new version of the columns."""
    members = [name.removesuffix("_epoch") for name in parquet.COLUMNS if not name.endswith("_value")]
    assert tuple(members) == (*FIELDS, "hash")


async def test_a_file_is_verified_as_ndjson_is(audited: Watched, tmp_path: Path) -> None:
    """Its lines are those of the other export, to the byte, with the hardest of names."""
    for name in HOSTILE:
        await refused(audited.database, name)
    lines = await on_record(audited.database, 30)
    kept = tmp_path / "kept.parquet"
    assert (await run("export", "--output", kept)).exit_code == 0
    text = tmp_path / "kept.ndjson"
    assert (await run("export", "--output", text)).exit_code == 0
    assert b"".join(parquet.read(kept)) == text.read_bytes()
    whole, other = await run("verify", kept), await run("verify", text)
    assert (whole.exit_code, whole.stdout) == (0, other.stdout)
    assert len(lines) > 0


@pytest.fixture
async def kept(audited: Watched, tmp_path: Path) -> Path:
    """An export of 20 entries."""
    await on_record(audited.database, 20)
    path = tmp_path / "kept.parquet"
    assert (await run("export", "--output", path)).exit_code == 0
    return path


async def test_a_changed_file_is_found(kept: Path) -> None:
    rows = files.read_table(kept).to_pylist()
    changes = {
        "holder": "eve",
        "token_value": 999,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "details": '{"eve": 1}',
        "enforced": not rows[6]["enforced"],
    }
    for column, changed in changes.items():
        files.write_table(pyarrow.Table.from_pylist([*rows[:6], rows[6] | {column: changed}, *rows[7:]]), kept)
        result = await run("verify", kept)
        assert (result.exit_code, "Entry 7 was changed" in result.stdout) == (1, True), column
    # A removed entry is found, too, in a file that another program has written without our types.
    files.write_table(pyarrow.Table.from_pylist([*rows[:6], *rows[7:]]), kept)
    assert "Entry 7 is missing" in (await run("verify", kept)).stdout


async def test_a_row_cannot_pass_for_several_entries(kept: Path) -> None:
    """Other programs see rows: the line of an entry in the details of another one hides it from them."""
    rows, lines = files.read_table(kept).to_pylist(), b"".join(parquet.read(kept)).decode().splitlines()
    own, following = (line.rpartition(',"hash":') for line in lines[6:8])
    details = own[0].partition(',"details":')[2]
    rows[6]["details"] = f"{details}{own[1]}{own[2]}\n{following[0]}"
    rows[6]["hash"] = rows.pop(7)["hash"]
    files.write_table(pyarrow.Table.from_pylist(rows), kept)
    result = await run("verify", kept)
    assert result.exit_code == 1
    assert "Entry 7 was changed" in result.stdout
    assert "Entry 8 is missing" in result.stdout


async def test_filters_a_part_of_the_record_and_standard_output(audited: Watched, tmp_path: Path) -> None:
    await sealed(audited.database, 60)
    output = tmp_path / "part"
    arguments = ("export", "--format", "parquet", "--output", output, "--after", "20", "--holder", "holder-1")
    assert (await run(*arguments)).exit_code == 0
    assert set(files.read_table(output).column("holder").to_pylist()) == {"holder-1"}
    assert json.loads(read_about(output))["filters"] == {"holder": "holder-1", "after": 20}
    assert (await run("export", "--format", "parquet", "--holder", "nobody", "--output", output)).exit_code == 0
    assert files.read_table(output).num_rows == 0
    assert json.loads(read_about(output))["last"] == 0
    output.write_bytes((await run("export", "--format", "parquet")).stdout_bytes)
    assert files.read_table(output).num_rows == 60


async def test_without_the_library(audited: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = await run("export", "--output", tmp_path / "record.parquet")
    assert isinstance(result.exception, GatewayError)
    assert "fencing-gateway[parquet]" in result.exception.advice
    assert list(tmp_path.iterdir()) == []


async def test_a_broken_file_and_one_of_others(tmp_path: Path) -> None:
    broken, other = tmp_path / "broken.parquet", tmp_path / "other.parquet"
    files.write_table(pyarrow.table({"a": [1]}), other)
    for path, content, said in (
        (broken, b"PAR1 and no more", "cannot be read as Parquet"),
        (broken, b"PAR1" + b"\0" * 40 + b"PAR1", "cannot be read as Parquet"),
        (other, other.read_bytes(), "no Parquet export of the record"),
    ):
        path.write_bytes(content)
        result = await run("verify", path)
        assert isinstance(result.exception, ConfigurationError)
        assert said in result.exception.message


def line(position: int, **members: Any) -> bytes:
    """A line of an export, whose hash chains nothing."""
    at = (datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=position % 1_000_000)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    entry = dict.fromkeys(FIELDS) | {"position": position, "id": f"{position:036}", "at": at, "kind": "rejection"}
    known = {"target": "/" + "x" * 500, "holder": f"holder-{position}", "token": "2.9223372036854775807"}
    return json.dumps({**entry, **known, **members, "hash": "ab" * 32}, separators=(",", ":")).encode()


def test_the_largest_token_and_numbers_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    largest = line(1, token="2147483647.9223372036854775807", fence="9223372036854775807")
    odd = line(2).replace(
        b'"details":null', b'"details":{"n": 1.0, "m": 12345678901234567890123, "e": [1e400, "\xc3\xa9"]}'
    )
    with path.open("wb") as file:
        parquet.write([largest, odd], file, {}, lambda _: None)
    assert b"".join(parquet.read(path)) == largest + b"\n" + odd + b"\n"
    assert files.read_table(path).column("token_value")[0].as_py() == 2**63 - 1


@pytest.mark.parametrize(
    "wrong",
    [
        b"{}",
        b"not JSON",
        line(1, at="2026-01-01T00:00:00Z"),
        line(1, token="02"),
        line(1, token="0.34"),
        line(2**63),
        line(1, more=1),
    ],
)
def test_an_entry_that_cannot_be_kept_exactly_is_an_error(tmp_path: Path, wrong: bytes) -> None:
    with (tmp_path / "a.parquet").open("wb") as file, pytest.raises(ConfigurationError, match="exactly"):
        parquet.write([line(1), wrong], file, {}, lambda _: None)


@pytest.mark.thorough
def test_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times the entries need no more memory of pyarrow, and each row group is small."""
    monkeypatch.setattr(parquet, "ROWS", 2_000)
    peaks = []
    for count in (6_000, 60_000):
        path = tmp_path / f"{count}.parquet"
        before = pyarrow.total_allocated_bytes()
        allocated: list[int] = []

        def see(_: int, allocated: list[int] = allocated) -> None:
            allocated.append(pyarrow.total_allocated_bytes())

        with path.open("wb") as file:
            parquet.write(map(line, range(1, count + 1)), file, {}, see)
        peaks.append(max(allocated) - before)
        groups = files.ParquetFile(path).metadata
        assert {groups.row_group(number).num_rows for number in range(groups.num_row_groups)} == {2_000}
    assert peaks[1] < 1.5 * peaks[0] + 1024 * 1024
