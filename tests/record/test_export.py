"""Exports: whole, in order, verifiable, harmless in a spreadsheet; in constant memory however slow the client is."""

import asyncio
import csv
import io
import json
import re
import socket
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import pytest_asyncio

from gateway.api import exports
from gateway.db import export
from gateway.db.export import ExportFormat, open_export
from gateway.fencing.record import Filters, Kind
from gateway.observe.events import RequestAnswered
from tests.record.sealed import flaws, on_record
from tests.record.varied import everything, of_days, sealed
from tests.record.watched import AUDITOR, HOSTILE, Watched, refused, watched


@pytest_asyncio.fixture
async def stage(dsn: str) -> AsyncIterator[Watched]:
    async with watched(dsn) as one:
        yield one


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


class TestNdjson:
    async def test_it_is_the_record_and_proves_it(self, stage: Watched) -> None:
        lines = await on_record(stage.database, 300)
        answer = await stage.get("/v1/events.ndjson")
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.headers["content-disposition"] == 'attachment; filename="events.ndjson"'
        assert answer.text == "".join(f"{line}\n" for line in lines)
        assert flaws(answer.text.splitlines()) == []

    async def test_hostile_names_neither_break_a_line_nor_the_chain(self, stage: Watched) -> None:
        for name in HOSTILE:
            await refused(stage.database, name)
        text = (await stage.get("/v1/events.ndjson")).content.decode()
        lines = text.removesuffix("\n").split("\n")
        assert [json.loads(line)["holder"] for line in lines] == list(HOSTILE)
        assert [json.loads(line)["details"]["name"] for line in lines] == list(HOSTILE)
        assert flaws(lines) == []
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)

    async def test_it_goes_on_after_a_position(self, stage: Watched) -> None:
        lines = await on_record(stage.database, 30)
        assert (await stage.get("/v1/events.ndjson", after=20)).text.splitlines() == lines[20:]
        assert (await stage.get("/v1/events.ndjson", after=10**17)).text == ""


class TestCsv:
    async def test_it_is_the_record_row_by_row(self, stage: Watched) -> None:
        await sealed(stage.database, 100)
        answer = await stage.get("/v1/events.csv")
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        lines = (await stage.get("/v1/events.ndjson")).text.splitlines()
        for row, line in zip(rows(answer.text), lines, strict=True):
            entry = {name: _as_csv(value) for name, value in json.loads(line).items()}
            assert row == entry
            assert [*row] == [*entry]

    async def test_nothing_in_it_is_a_formula(self, stage: Watched) -> None:
        for name in HOSTILE:
            await refused(stage.database, name)
        found = rows((await stage.get("/v1/rejections.csv")).content.decode())
        assert len(found) == len(HOSTILE)
        for row, name in zip(found, HOSTILE, strict=True):
            harmless = f"'{name}" if name[0] in "=+-@\t\r\uff1d" else name
            for field in ("rule", "holder", "target", "client", "request_id", "fence_holder", "fence_caller"):
                assert row[field] == harmless
            assert all(not value or value[0] not in "=+-@\t\r\uff1d" for value in row.values())

    async def test_an_empty_one_has_a_header(self, stage: Watched) -> None:
        assert (await stage.get("/v1/rejections.csv")).text == export.HEADER.decode()


class TestWhole:
    @pytest.mark.thorough
    async def test_day_after_day_whatever_is_asked_for(self, stage: Watched) -> None:
        entries = await of_days(stage.database, 400)
        for asked in ({}, {"holder": "holder-1"}, {"prefix": "job/1"}, {"since": entries[100].at.isoformat()}):
            page = (await stage.get("/v1/rejections", order="oldest", limit=1000, **asked)).json()["rejections"]
            lines = (await stage.get("/v1/rejections.ndjson", **asked)).text.splitlines()
            assert [json.loads(line)["id"] for line in lines] == [one["id"] for one in page]
        everything_ = (await stage.get("/v1/events.ndjson", kind=["raised", "administration"])).text.splitlines()
        kinds = (Kind.RAISED, Kind.ADMINISTRATION)
        assert [json.loads(line)["position"] for line in everything_] == [
            entry.position for entry in await everything(stage.database) if entry.kind in kinds
        ]

    async def test_it_ends_where_the_record_ended(self, stage: Watched) -> None:
        """Entries that arrive during the export are not in it. Otherwise it would never end."""
        await sealed(stage.database, 50)
        written: list[bytes] = []

        async def write(piece: bytes) -> None:
            written.append(piece)
            await sealed(stage.database, 10)

        async with open_export(stage.database, Filters()) as one:
            await one.write(ExportFormat.NDJSON, write)
        assert len(b"".join(written).splitlines()) == 50

    async def test_one_that_breaks_off_is_seen_to(self, stage: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        await sealed(stage.database, 50)
        real = export.Export.write

        async def broken(self: export.Export, form: ExportFormat, write: export.Write) -> None:
            await real(self, form, write)
            raise OSError("the database went away")

        monkeypatch.setattr(export.Export, "write", broken)
        with pytest.raises(httpx.RemoteProtocolError):
            await stage.get("/v1/events.ndjson")


BIG = 40_000


@pytest.mark.thorough
class TestClientsThatDoNotRead:
    async def test_they_hold_no_memory_and_leave_their_place(self, stage: Watched) -> None:
        await sealed(stage.database, BIG)
        await stage.get("/v1/events.ndjson", kind="epoch")
        memory = psutil.Process().memory_info().rss
        held = [await _unread(stage, "/v1/events.ndjson") for _ in range(exports.MOST)]
        answer = await stage.get("/v1/events.csv")
        assert (answer.status_code, answer.json()["code"]) == (503, "too-many-readers")
        assert "retry-after" in answer.headers
        # If the gateway had buffered the answers, each would have taken some 25 MB.
        assert psutil.Process().memory_info().rss - memory < exports.MOST * 5_000_000
        for one in held:
            one.close()
        while (await stage.get("/v1/events.ndjson", kind="epoch")).status_code != 200:
            await asyncio.sleep(0.02)
        while await _sessions(stage):
            await asyncio.sleep(0.02)

    async def test_one_that_takes_nothing_is_cut_off(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.http.streaming.SEND_TIMEOUT", 0.2)
        async with watched(dsn) as stage:
            await sealed(stage.database, BIG)
            with await _unread(stage, "/v1/events.ndjson") as unread:
                while not any(isinstance(event, RequestAnswered) for event in stage.events):
                    await asyncio.sleep(0.02)
                taken = b""
                while piece := await asyncio.get_running_loop().sock_recv(unread, 1 << 20):
                    taken = taken[-100:] + piece
                # The answer lacks the last chunk, which is empty.
                assert not taken.endswith(b"0\r\n\r\n")


async def _unread(stage: Watched, path: str) -> socket.socket:
    """A client that has asked, and reads no more than the beginning of the answer."""
    address = urlsplit(stage.origin)
    assert address.hostname is not None
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)  # noqa: FBT003 - the signature is the library's
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, (address.hostname, address.port))
    head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {AUDITOR}\r\n\r\n"
    await loop.sock_sendall(client, head.encode())
    assert (await loop.sock_recv(client, 100)).startswith(b"HTTP/1.1 200")
    return client


async def _sessions(stage: Watched) -> int:
    """How many sessions are busy with an export."""
    row = await stage.database.fetchrow(
        "SELECT count(*) AS busy FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'COPY%'"
    )
    assert row is not None
    return int(row["busy"])


def _as_csv(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case dict():
            return json.dumps(value)
    return str(value)
