"""``gateway audit``: what is on record is found, followed, kept, verified, and no name in it can act on a terminal."""

import asyncio
import csv
import io
import json
import os
import pty
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from gateway.api.record_views import EventFilters
from gateway.commands import record_client as audit_reading
from gateway.commands.api_client import Gateway
from gateway.commands.record_client import WHAT, WHEN
from gateway.db.database import Database
from gateway.db.record import drop_partition
from gateway.errors import GatewayError, SqlError, Unavailable
from gateway.fencing.decision import Decision
from gateway.fencing.record import EntryReason, Kind
from tests import ROOT
from tests.record.conftest import AUDITOR, HOSTILE, Watched, refused, run, watched
from tests.record.entries import as_superuser, everything, on_record, put, sealed
from tests.record.test_sealing import sealed_on
from tests.running import OPEN
from tests.tiers import first
from tests.waiting import PATIENCE

LACKING = {"action": "write", "on": "table public.orders"}
COLUMNS = "time\twhat\tresource\ttoken\tholder\tcaller\tfence\tby\tlate"


class TestSearch:
    async def test_plain_columns_where_it_is_no_terminal(self, audited: Watched) -> None:
        await refused(audited.database, "zombie")
        await audited.put(kind=Kind.LEASE_RELEASED, holder="bob")
        result = await run("search")
        assert result.exit_code == 0, result.output
        header, *lines = result.stdout.splitlines()
        assert header == COLUMNS
        cells = [line.split("\t")[1:] for line in lines]
        assert cells == [
            ["lease-released", "job/1", "", "bob", "ann", "", "", ""],
            ["token-stale", "job/1", "33", "zombie", "ann", "2.34", "zombie", "5.0 seconds"],
        ]
        assert result.stderr == "2 of 2\n"
        result = await run("search", "--holder", "nobody")
        assert (result.exit_code, result.stderr) == (0, "No entry matches.\n")

    async def test_it_asks_for_what_was_asked_for(self, audited: Watched) -> None:
        await sealed(audited.database, 140)
        since = (await everything(audited.database))[70].at.isoformat()
        options = ("--kind", "rejection", "--kind", "raised", "--prefix", "job/", "--holder", "holder-1")
        result = await run("search", "--json", *options, "--since", since)
        found = [json.loads(line) for line in result.stdout.splitlines()]
        parameters: dict[str, Any] = {"kind": ["rejection", "raised"], "prefix": "job/", "holder": "holder-1"}
        assert found == (await audited.get("/v1/events", since=since, **parameters)).json()["events"] != []
        observed = [json.loads(line) for line in (await run("search", "--json", "--observed")).stdout.splitlines()]
        assert {one["enforced"] for one in observed} == {False}

    async def test_more_than_a_page_and_the_oldest_first(
        self, audited: Watched, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("gateway.commands.api_client._PAGE", 7)
        await sealed(audited.database, 40)
        for options, wanted in ((("--oldest",), range(1, 31)), ((), range(40, 10, -1))):
            result = await run("search", "--json", "--limit", "30", *options)
            assert [json.loads(line)["position"] for line in result.stdout.splitlines()] == list(wanted)
        assert (await run("search", "--limit", "3")).stderr == "3 of 40\n"

    async def test_what_cannot_be_asked(self, audited: Watched) -> None:
        for option, wrong, said in (
            ("--token", "x", "x"),
            ("--reason", "bogus", "token-stale"),
            ("--since", "yesterday", "--since"),
            ("--prefix", "\0", "NUL"),
        ):
            result = await run("search", option, wrong)
            assert isinstance(result.exception, GatewayError)
            assert said in result.exception.message

    async def test_who_is_not_known(self, audited: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        for key in ("wrong", ""):
            monkeypatch.setenv("GATEWAY_API_KEY", key)
            result = await run("search")
            assert isinstance(result.exception, GatewayError)
            assert {"wrong": "API key is unknown", "": "no credentials"}[key] in result.exception.message
            assert "GATEWAY_API_KEY" in result.exception.advice
            assert result.stdout == ""

    async def test_a_demo_needs_no_key(self, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GATEWAY_API_KEY", "")
        async with watched(dsn, grants=OPEN) as demo:
            await refused(demo.database, "zombie")
            assert "zombie" in (await run("search", "--url", demo.origin)).stdout


class TestHostileNames:
    async def test_no_name_acts_on_anything_in_plain_columns(self, audited: Watched) -> None:
        for name in HOSTILE:
            await refused(audited.database, name)
        for arguments in (("search",), ("search", "--json"), ("tail", "--limit", str(len(HOSTILE)), "--last", "100")):
            result = await run(*arguments)
            assert result.exit_code == 0, result.output
            _check_harmless(result.stdout)
            assert len(result.stdout.splitlines()) in (len(HOSTILE), len(HOSTILE) + 1)


WIDE: dict[str, Any] = {
    "holder": "写入者" * 20,
    "resource": "public.orders/" + "x" * 200,
    "caller": "חשבוניות-" + "c" * 60,
}


class TestTerminal:
    @pytest.mark.parametrize("width", first([80, 40, 120, 200]))
    async def test_a_row_is_a_line_of_the_terminal(self, audited: Watched, width: int) -> None:
        """At 80 columns each row has its writer and its reason, and a name that is too long loses its middle."""
        await refused(audited.database, "short")
        await put(audited.database, **WIDE)
        await put(audited.database, holder=None, caller="nobody-but-a-caller", reason="resource-underivable")
        await put(
            audited.database, holder="\x1b[31m\u202e" * 9, reason="denied", details=json.dumps({"missing": LACKING})
        )
        for command in (("search",), ("tail", "--last", "9", "--limit", "4")):
            shown = await asyncio.to_thread(_on_a_terminal, *command, columns=width)
            plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
            rows = [line for line in plain.replace("\r", "").splitlines() if line.startswith("20")]
            assert len(rows) == 4, plain
            for line in plain.replace("\r", "").splitlines():
                assert cell_len(line) <= width, line
            if width >= 80:
                for reason in ("token-stale", "resource-underivable", "denied"):
                    assert any(reason in row for row in rows), (reason, plain)
                for writer in ("short", "写入", "nobody", "\\x1b"):
                    assert any(writer in row for row in rows), (writer, plain)
                assert re.search(r"写\S*…\S*者", plain) or width > 80
            if width >= 120:
                assert "…" not in plain
                assert plain.count("x") >= len(WIDE["resource"]) - len("public.orders/")
            if width == 200:
                assert "nobody-but-a-caller" in plain


class TestTail:
    async def test_what_is_there_and_what_comes(self, audited: Watched) -> None:
        await sealed(audited.database, 20)
        tailing = asyncio.ensure_future(run("tail", "--json", "--last", "3", "--limit", "5"))
        while not _follows(audited):
            await asyncio.sleep(0.01)
        await sealed(audited.database, 5)
        result = await tailing
        assert [json.loads(line)["position"] for line in result.stdout.splitlines()] == [18, 19, 20, 21, 22]

    async def test_a_lost_connection_is_taken_up_again(self, audited: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("gateway.commands.record_client.time.sleep", lambda _: None)
        await sealed(audited.database, 200)
        said: list[str] = []

        class Lossy(Gateway):
            """Breaks off in the midst of the second piece, but for every fifth time."""

            @contextmanager
            def streamed(self, path: str, parameters: Mapping[str, Any], **options: Any) -> Iterator[Iterator[bytes]]:
                with super().streamed(path, parameters, **options) as pieces:
                    yield pieces if len(said) % 5 == 4 else self._broken(pieces)

            def _broken(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
                yield next(pieces)
                piece = next(pieces)
                yield piece[: len(piece) // 2]
                raise Unavailable("The connection was lost.")

        def follow() -> list[int]:
            followed = audit_reading.follow_entries(
                Lossy(audited.origin, AUDITOR), {"after": 0}, 0, lambda why, _: said.append(why)
            )
            return [next(followed)["position"] for _ in range(200)]

        assert await asyncio.to_thread(follow) == list(range(1, 201))
        assert len(said) >= 4

    async def test_a_gateway_that_is_not_there_is_an_error(self) -> None:
        result = await run("tail", "--url", "http://127.0.0.1:9")
        assert isinstance(result.exception, Unavailable)
        assert (await run("tail", "--since", "2026-03-01")).exit_code == 2, "it follows what comes from now on"


class TestExport:
    async def test_to_a_file_and_to_standard_output(self, audited: Watched, tmp_path: Path) -> None:
        lines = await on_record(audited.database, 50)
        output = tmp_path / "record.ndjson"
        assert (await run("export", "--output", output)).exit_code == 0
        assert output.read_text().splitlines() == lines
        assert (await run("export", "--after", "20")).stdout_bytes.decode().splitlines() == lines[20:]
        table = tmp_path / "record.csv"
        assert (await run("export", "--output", table, "--holder", "ann")).exit_code == 0
        assert len(list(csv.DictReader(io.StringIO(table.read_text())))) == 50
        assert sorted(path.name for path in tmp_path.iterdir()) == ["record.csv", "record.ndjson"]

    async def test_one_that_breaks_off_leaves_what_was_there_and_a_place_may_be_none(
        self, audited: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await on_record(audited.database, 5)
        output = tmp_path / "record.ndjson"
        output.write_text("before")

        @contextmanager
        def broken(*_: object, **__: object) -> Iterator[Iterator[bytes]]:
            def pieces() -> Iterator[bytes]:
                yield b"half"
                raise Unavailable("The connection was lost.")

            yield pieces()

        monkeypatch.setattr(Gateway, "streamed", broken)
        result = await run("export", "--output", output)
        assert isinstance(result.exception, Unavailable)
        assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("record.ndjson", "before")]
        result = await run("export", "--output", tmp_path / "nowhere" / "record.csv")
        assert isinstance(result.exception, GatewayError)
        assert "cannot be written" in result.exception.message


class TestVerify:
    @pytest.fixture
    async def kept(self, audited: Watched, tmp_path: Path) -> Path:
        """An export of 30 entries."""
        lines = await on_record(audited.database, 30)
        path = tmp_path / "kept.ndjson"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    async def test_what_is_as_it_was(self, audited: Watched, kept: Path) -> None:
        head = (await audited.get("/v1/record/head")).json()
        for arguments in (("verify",), ("verify", kept), ("verify", kept, "--head", f"30:{head['hash']}")):
            result = await run(*arguments)
            assert result.exit_code == 0, result.output
            assert "30 entries, positions 1 to 30." in result.stdout
            assert result.stdout.splitlines()[-1] == f"--head 30:{head['hash']}"

    async def test_what_is_not_or_was_written_anew_or_cut_off(self, kept: Path) -> None:
        for position, said in ((12, "Entry 12 differs from the saved head"), (31, "Entry 31 is missing")):
            result = await run("verify", kept, "--head", f"{position}:{'ab' * 32}")
            assert (result.exit_code, said in result.stdout) == (1, True), said
        lines = kept.read_text().splitlines()
        for changed, said in (
            ([*lines[:6], lines[6].replace("ann", "eve"), *lines[7:]], "Entry 7 was changed"),
            ([*lines[:6], *lines[9:]], "Entries 7 to 9: each is missing"),
            ([*lines[:6], lines[7], lines[6], *lines[8:]], "Entry 7 is in the wrong place"),
            ([*lines[:6], lines[6], *lines[6:]], "Entry 7 appears twice"),
            ([*lines[:6], "{}", *lines[6:]], "Line 7 is no entry of the record"),
        ):
            kept.write_text("\n".join(changed))
            result = await run("verify", kept)
            assert (result.exit_code, said in result.stdout, "--head" in result.stdout) == (1, True, False), said
            facts = json.loads((await run("verify", kept, "--json")).stdout)
            assert (facts["sound"], said in facts["findings"][0], facts["head"]) == (False, True, None)

    async def test_several_files_and_one_that_begins_later(self, kept: Path, tmp_path: Path) -> None:
        lines = kept.read_text().splitlines()
        first, second = tmp_path / "1.ndjson", tmp_path / "2.ndjson"
        first.write_text("".join(f"{line}\n" for line in lines[:11]))
        second.write_text("".join(f"{line}\n" for line in lines[11:]))
        assert (await run("verify", first, second)).exit_code == 0
        assert (await run("verify", second, first)).exit_code == 1
        result = await run("verify", second)
        assert result.exit_code == 0
        assert "The predecessor of entry 12 is unknown" in result.stdout
        witness = f"11:{json.loads(lines[10])['hash']}"
        assert "The predecessor" not in (await run("verify", second, "--head", witness)).stdout

    async def test_a_record_that_was_tampered_with_at_its_end(self, audited: Watched) -> None:
        """The gateway's word about its end has to fit what it hands out."""
        await on_record(audited.database, 5)
        await audited.database.fetch_write("UPDATE fencing.head SET position = 7")
        result = await run("verify")
        assert result.exit_code == 1
        assert "Entries 6 to 7: each is missing" in result.stdout

    async def test_a_day_that_somebody_has_removed_is_not_one_that_was_dropped(self, audited: Watched) -> None:
        """Days go from the beginning of the record in both cases; but what the gateway drops, it puts on record."""
        await sealed_on(audited.database, 12, 3)
        day = await sealed_on(audited.database, 11, 2)
        await on_record(audited.database, 2)
        await _dropped(audited.database)
        result = await run("verify")
        assert (result.exit_code, "Nothing was changed, removed or moved." in result.stdout) == (0, True)
        await as_superuser(audited.database, f"DROP TABLE fencing.entry_{day:%Y%m%d}")
        result = await run("verify")
        assert result.exit_code == 1
        assert "Entries 1 to 5: each is missing" in result.stdout

    async def test_an_empty_record(self, audited: Watched) -> None:
        assert (await run("verify")).stdout.splitlines()[0] == "There are no entries."

    async def test_what_cannot_be_verified(self, tmp_path: Path) -> None:
        for noted in ("5", "5:ab", f"x:{'ab' * 32}", f"5:{'zz' * 32}"):
            result = await run("verify", tmp_path / "none", "--head", noted)
            assert isinstance(result.exception, GatewayError)
            assert "--head" in result.exception.message
        result = await run("verify", tmp_path / "none")
        assert isinstance(result.exception, GatewayError)
        assert "cannot be read" in result.exception.message
        assert isinstance((await run("verify")).exception, GatewayError), "neither files nor a gateway"


async def _dropped(database: Database) -> None:
    """Drop what is more than eleven days old. That gives way while the gateway seals, and is done another time."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await drop_partition(database, 11) is not None
            except SqlError as error:
                if "in use" not in error.message:
                    raise
            else:
                return


def _follows(audited: Watched) -> bool:
    """Return whether a client has begun to follow: the gateway has answered with the page of existing entries."""
    return any(getattr(event, "path", None) == "/v1/events" for event in audited.events)


def _check_harmless(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069]", text)


def _on_a_terminal(*arguments: str, columns: int = 80) -> str:
    """Return the output of the command when standard output is a terminal of so many columns."""
    child, descriptor = pty.fork()
    if child == 0:
        os.environ["COLUMNS"] = str(columns)
        os.execv(sys.executable, [sys.executable, "-m", "gateway", "audit", *arguments])
    shown = b""
    try:
        while piece := os.read(descriptor, 65536):
            shown += piece
    except OSError:  # how the end of a terminal is told
        pass
    os.close(descriptor)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, shown
    return shown.decode()


DATABASE = ROOT / "gateway/db"


def test_each_reason_that_the_database_writes_can_be_asked_for() -> None:
    sql = "".join(path.read_text() for folder in ("schema", "queries") for path in (DATABASE / folder).glob("*.sql"))
    (listed,) = re.findall(r"FUNCTION fencing\.reasons_v1\(\).*?ARRAY\[(.*?)\]", sql, re.DOTALL)
    bypasses = set(re.findall(r"'((?:row|object|bucket|guard)-(?:changed|appeared|vanished|disabled|removed))'", sql))
    assert len(bypasses) == 9
    assert {*re.findall(r"'([a-z-]+)'", listed), *bypasses, *Decision} - {*EntryReason} == {"raised", "held"}


def test_there_is_an_option_for_each_filter_of_the_api() -> None:
    assert {*WHAT, *WHEN} == {*EventFilters.model_fields}
