"""The gateway keeps as much of the payloads of refused writes as the rule asks for, without the redacted parts."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from gateway.db import record
from gateway.db.database import Database
from gateway.db.record import RejectedPayload
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.record import CapturedPayload
from gateway.objects import exchange
from gateway.record import payload_capture
from gateway.record.payload_capture import Capture
from tests.doubles.s3 import S3Double
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import Reply, framed, head, send
from tests.objects.test_forms import post, signed
from tests.patience import patient
from tests.waiting import PATIENCE

KEPT = 1000
MEBIBYTE = 1024 * 1024
REFUSED = (412, "StaleFencingToken")
TODAY = "(now() AT TIME ZONE 'UTC')::date"
TABLES = """
CREATE TABLE public.users (id bigint PRIMARY KEY, name text, secret text, extra jsonb);
CREATE FUNCTION public.note(secret text) RETURNS void LANGUAGE sql AS 'UPDATE users SET name = secret WHERE id = 9'
"""


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """The gateway waits for the beginning of a body, however long a busy machine takes to read it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "CAPTURE_TIMEOUT", PATIENCE)
        yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(
        postgres_server,
        S3Double(buckets=["bucket"]),
        audit={"capture": KEPT, "redact": ["public.users.secret", "public.note.secret", "password"]},
        postgres={"functions": ["public.note"]},
    ) as one:
        for statement in TABLES.split(";\n"):
            await one.rows(statement)
        await one.knows("users")
        yield one


@pytest_asyncio.fixture(loop_scope="module")
async def store(shared: Stage) -> AsyncIterator[Database]:
    opened = patient(shared.dsn)
    yield opened
    await opened.close()


async def details(stage: Stage, resource: str) -> list[tuple[UUID, dict[str, Any]]]:
    """The entries of a resource, by their ids, and what they say of the payload."""
    found = await stage.rows(
        "SELECT id, details FROM fencing.record WHERE kind = 'rejection' AND resource = $1 ORDER BY at", resource
    )
    return [(row["id"], json.loads(row["details"] or "{}").get("payload")) for row in found]


async def only(stage: Stage, store: Database, resource: str) -> tuple[RejectedPayload | None, dict[str, Any]]:
    """Return the payload kept with the one entry of a resource, and the details of that entry."""
    ((entry, said),) = await details(stage, resource)
    kept = await record.read_payload(store, entry)
    if kept is not None:
        assert said["kept"] == len(kept.body)
        assert said["sha256"] == hashlib.sha256(kept.body).hexdigest(), "the entry proves what is kept"
        assert said["truncated"] is kept.truncated
    return kept, said


async def refused(stage: Stage, method: str, target: str, body: bytes, media_type: str, **headers: str) -> None:
    async with stage.api() as api:
        sent = {"Content-Type": media_type, "Fencing-Token": "3", **headers}
        found = await api.request(method, target, content=body, headers=sent)
    assert found.status_code == 412, found.text


@pytest.mark.asyncio(loop_scope="module")
class TestTables:
    @pytest_asyncio.fixture(loop_scope="module")
    async def user(self, shared: Stage) -> int:
        """A row that belongs to token 9."""
        number = uuid4().int >> 70
        assert (await shared.barrier(f"public.users/{number}", "9")).status_code == 200
        return number

    async def test_json(self, shared: Stage, store: Database, user: int) -> None:
        """The whole way, and once the form of the request is known."""
        body = b'{"name": "n", "secret": "s3cr3t", "extra": {"password": "p4ss"}}'
        for _ in range(3):
            await refused(shared, "PATCH", f"/v1/tables/users?id=eq.{user}", body, "application/json")
        found = await details(shared, f"public.users/{user}")
        assert len(found) == 3
        for entry, said in found:
            assert (said["truncated"], said["redacted"]) == (False, True)
            expected = b'{"name":"n","secret":"[redacted]","extra":{"password":"[redacted]"}}'
            assert await record.read_payload(store, entry) == RejectedPayload(
                "application/json", expected, truncated=False
            )

    async def test_each_write_of_a_transaction(self, shared: Stage, store: Database, user: int) -> None:
        write = {"method": "PATCH", "table": "users", "query": f"id=eq.{user}", "body": {"secret": "s3cr3t"}}
        await refused(shared, "POST", "/v1/transaction", json.dumps({"writes": [write]}).encode(), "application/json")
        kept, _ = await only(shared, store, f"public.users/{user}")
        assert kept is not None
        assert kept.body == b'{"secret":"[redacted]"}'

    async def test_filters_do_not_tell_either(self, shared: Stage, user: int) -> None:
        target = f"/v1/tables/users?id=eq.{user}&secret=eq.s3cr3t&or=(name.eq.n,secret.eq.s3cr3t)"
        await refused(shared, "DELETE", target, b"", "application/json")
        (found,) = await shared.rows(
            "SELECT target FROM fencing.record WHERE resource = $1 AND kind = 'rejection'", f"public.users/{user}"
        )
        assert found["target"] == f"/v1/tables/users?id=eq.{user}&secret=[redacted]&or=[redacted]"

    async def test_nothing_of_a_secret_is_anywhere(self, shared: Stage) -> None:
        rows = await shared.rows("SELECT r::text AS text FROM fencing.record AS r")
        rows += await shared.rows("SELECT convert_from(body, 'UTF8') AS text FROM fencing.payload")
        assert not [row["text"] for row in rows if "s3cr3t" in row["text"] or "p4ss" in row["text"]]


@pytest.mark.asyncio(loop_scope="module")
class TestFunctions:
    async def test_arguments_are_columns_of_the_function(self, shared: Stage, store: Database) -> None:
        name = f"job/{uuid4().hex}"
        assert (await shared.barrier(name, "9")).status_code == 200
        body = b'{"secret": "s3cr3t"}'
        await refused(shared, "POST", "/v1/tables/rpc/note", body, "application/json", **{"Fencing-Resource": name})
        kept, _ = await only(shared, store, name)
        assert kept == RejectedPayload("application/json", b'{"secret":"[redacted]"}', truncated=False)
        (entry,) = await shared.rows("SELECT rule FROM fencing.record WHERE resource = $1 AND kind = 'rejection'", name)
        assert entry["rule"] == "public.note"


def stale(stage: Stage, key: str, size: int, *unsigned: tuple[str, str]) -> bytes:
    """The head of a put of an overtaken holder."""
    length = ("content-length", str(size))
    return head(stage.origin, "PUT", f"/bucket/{key}", [("fencing-token", "3")], unsigned=[length, *unsigned])


def answer(reply: Reply | None) -> tuple[int, str]:
    assert reply is not None
    return reply.status, reply.code


@pytest.mark.asyncio(loop_scope="module")
class TestObjects:
    @pytest_asyncio.fixture(loop_scope="module")
    async def key(self, shared: Stage) -> str:
        """A key that belongs to token 9."""
        key = f"key-{uuid4().hex}"
        await call(connect(shared.origin, "9").put_object, Key=key, Body=b"new")
        return key

    @pytest.mark.parametrize("size", [1, KEPT, KEPT + 1, 9 * MEBIBYTE])
    async def test_the_beginning_is_kept(self, shared: Stage, store: Database, key: str, size: int) -> None:
        """A small one was in memory when it was refused; of a large one no more was asked for than is kept."""
        body = bytes(range(256)) * (size // 256 + 1)
        request = stale(shared, key, size, ("content-type", "image/png"))
        assert answer(await send(shared.origin, request + body[:size])) == REFUSED
        kept, said = await only(shared, store, f"s3/bucket/{key}")
        assert kept == RejectedPayload("image/png", body[: min(size, KEPT)], truncated=size > KEPT)
        assert said["redacted"] is False

    async def test_a_client_that_waits_to_be_asked_is_not_asked(self, shared: Stage, store: Database, key: str) -> None:
        request = stale(shared, key, 10, ("expect", "100-continue"), ("content-type", "text/plain"))
        reply = await send(shared.origin, request)
        assert answer(reply) == REFUSED
        assert reply is not None
        assert reply.interim == ()
        kept, said = await only(shared, store, f"s3/bucket/{key}")
        assert kept is None
        assert said == {"media_type": "text/plain", "kept": 0, "left_out": "the client was not asked for it"}

    async def test_a_slow_zombie_is_not_waited_for(
        self, shared: Stage, store: Database, key: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "CAPTURE_TIMEOUT", 0.2)
        request = stale(shared, key, 10 * MEBIBYTE) + b"all there is"
        assert answer(await send(shared.origin, request)) == REFUSED
        kept, _ = await only(shared, store, f"s3/bucket/{key}")
        assert kept == RejectedPayload("", b"all there is", truncated=True)

    async def test_a_zombie_that_hangs_up_is_on_record(self, shared: Stage, key: str) -> None:
        parts = urlsplit(shared.origin)
        _, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(stale(shared, key, 10 * MEBIBYTE) + b"begun")
        await writer.drain()
        writer.close()
        async with asyncio.timeout(PATIENCE):
            while not await details(shared, f"s3/bucket/{key}"):
                await asyncio.sleep(0.02)

    @pytest.mark.parametrize("large", [False, True])
    async def test_without_the_framing(self, shared: Stage, store: Database, key: str, large: bool) -> None:  # noqa: FBT001
        chunks = [b"one, ", b"two", b"." * (9 * MEBIBYTE if large else 1)]
        request = head(
            shared.origin,
            "PUT",
            f"/bucket/{key}",
            [("fencing-token", "3"), ("x-amz-decoded-content-length", str(sum(map(len, chunks))))],
            payload="STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            unsigned=[("content-length", str(len(framed(*chunks)))), ("content-encoding", "aws-chunked")],
        )
        assert answer(await send(shared.origin, request + framed(*chunks))) == REFUSED
        kept, _ = await only(shared, store, f"s3/bucket/{key}")
        assert kept is not None
        assert kept.body.startswith(b"one, two.")
        assert kept.truncated is large

    async def test_overtaken_while_it_comes_in(self, shared: Stage, store: Database, key: str) -> None:
        """It is staged while it comes in, and refused when it is to become the object."""
        held = shared.double.hold(operation="UploadPart", key=key)
        body = b"begin" + bytes(9 * MEBIBYTE)
        writing = asyncio.ensure_future(outcome(connect(shared.origin, "9").put_object, Key=key, Body=body))
        await held.arrived.wait()
        assert (await shared.barrier(f"s3/bucket/{key}", "10")).status_code == 200
        held.release()
        assert await writing == REFUSED
        kept, _ = await only(shared, store, f"s3/bucket/{key}")
        assert kept is not None
        assert (kept.body[:6], len(kept.body), kept.truncated) == (b"begin\0", KEPT, True)

    async def test_the_file_of_a_form(self, shared: Stage, store: Database, key: str) -> None:
        fields = {"x-amz-meta-fencing-token": "3", "Content-Type": "text/plain"}
        form = signed(shared.origin, key, fields)
        assert (await post(form, b"of a browser")).status_code == 412
        kept, _ = await only(shared, store, f"s3/bucket/{key}")
        assert kept == RejectedPayload("text/plain", b"of a browser", truncated=False)

    async def test_a_delete_has_none(self, shared: Stage, key: str) -> None:
        assert await outcome(connect(shared.origin, "3").delete_object, Key=key) == REFUSED
        ((_, said),) = await details(shared, f"s3/bucket/{key}")
        assert said is None


@pytest.mark.asyncio(loop_scope="module")
class TestKeeping:
    async def test_old_ones_are_dropped(self, shared: Stage, store: Database) -> None:
        await shared.rows(
            f"INSERT INTO fencing.payload SELECT gen_random_uuid(), {TODAY} - days, 'text/old', '', false "
            "FROM unnest('{3, 8, 399, 401, 402, 500}'::integer[]) AS days"
        )
        assert await record.drop_payloads(store, 400, 2) == 2
        assert await record.drop_payloads(store, 400, 10) == 1
        left = f"SELECT {TODAY} - day AS age FROM fencing.payload WHERE media_type = 'text/old' ORDER BY day DESC"
        assert [row["age"] for row in await shared.rows(left)] == [3, 8, 399]
        assert await record.drop_payloads(store, 0, 100) == 2, "those of a week are never dropped"
        assert [row["age"] for row in await shared.rows(left)] == [3]


# Redaction ------------------------------------------------------------------------------------------------------------

TABLE = "public.users"
CAPTURE = Capture(1000, ["secret", "public.users.pin"])
FORM, CSV, JSON = "application/x-www-form-urlencoded", "text/csv", "application/json"
SECRET = "the secret itself"


def kept(content: str | bytes, media_type: str = JSON, table: str = TABLE, by: Capture = CAPTURE) -> CapturedPayload:
    found = by.of_table(content if isinstance(content, bytes) else content.encode(), media_type, table)
    assert found is not None
    return found


class TestWithoutRedaction:
    def test_nothing_is_kept_unless_an_operator_says_so_and_there_is_something(self) -> None:
        assert Capture().of_table(b"{}", JSON, TABLE) is None
        assert Capture(redact=["secret"]).of_object(b"{}", JSON) is None

        assert Capture(20).of_table(b"", "", TABLE) is None
        assert CAPTURE.of_table(b"", CSV, TABLE) is None

    def test_a_table_without_such_columns_is_kept_as_it_came(self) -> None:
        only_others = Capture(1000, ["public.orders.secret"])
        assert kept(b"no JSON", by=only_others) == CapturedPayload(JSON, b"no JSON")


class TestJson:
    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            ('{"id": 1, "secret": "s"}', '{"id":1,"secret":"[redacted]"}'),
            ('[{"secret": 1}, {"secret": null}]', '[{"secret":"[redacted]"},{"secret":"[redacted]"}]'),
            ('{"extra": {"deep": [{"secret": {"a": 1}}]}}', '{"extra":{"deep":[{"secret":"[redacted]"}]}}'),
            ('{"pin": "1234"}', '{"pin":"[redacted]"}'),
            # However the name is written, and wherever it hides.
            ('{"\\u0073ecret": "s"}', '{"secret":"[redacted]"}'),
            ('{"a": {"secret": "s"}, "a": 1}', '{"a":1}'),
            ('{"secret": "s", "secret": "t"}', '{"secret":"[redacted]"}'),
        ],
    )
    def test_values_of_redacted_columns_are_taken_out(self, content: str, expected: str) -> None:
        assert kept(content).body.decode() == expected

    def test_a_column_of_one_table_is_redacted_there_only(self) -> None:
        assert b"1234" in kept('{"pin": "1234"}', table="public.orders").body

    def test_no_type_is_json(self) -> None:
        assert kept('{"secret": "s"}', "").body == b'{"secret":"[redacted]"}'
        assert kept('{"secret": "s"}', "Application/JSON; charset=utf-8").redacted

    def test_redacted_first_and_cut_afterwards(self) -> None:
        content = json.dumps({"secret": "s" * 5000, "note": "n" * 5000})
        found = kept(content)
        assert (len(found.body), found.truncated) == (1000, True)
        assert found.body.startswith(b'{"secret":"[redacted]","note":"nnn')

    @pytest.mark.thorough
    @given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
    def test_nothing_below_a_redacted_column_is_ever_kept(self, inner: object) -> None:
        document = {"rows": [{"secret": {"wrapped": [inner, SECRET]}}]}
        assert SECRET.encode() not in kept(json.dumps(document)).body


@pytest.mark.parametrize(
    ("media_type", "content", "expected"),
    [
        (CSV, "id,secret\n1,s\n2,NULL\n", "id,secret\n1,[redacted]\n2,[redacted]\n"),
        (CSV, '"secret","id"\r\n"a, ""b""\nc",1\r\n', "secret,id\n[redacted],1\n"),
        (CSV, "\ufeffsecret\ns\n", "secret\n[redacted]\n"),
        (CSV, "id\n1\n", "id\n1\n"),
        (FORM, "id=1&secret=s", "id=1&secret=[redacted]"),
        (FORM, "secre%74=s&note=a+b%26", "secret=[redacted]&note=a+b%26"),
        (FORM, "secret=", "secret=[redacted]"),
    ],
)
def test_csv_and_forms(media_type: str, content: str, expected: str) -> None:
    found = kept(content, media_type)
    assert found.body.decode() == expected
    assert found.redacted is ("[redacted]" in expected)


@pytest.mark.parametrize(
    ("content", "media_type"),
    [
        (f'{{"secret": "{SECRET}"', JSON),
        ("[" * 100_000, JSON),
        (b'{"secret": "\xff"}', JSON),
        ("1" * 5000, JSON),
        (f"id,secret\n{SECRET}\n", CSV),
        (f'id,secret\n1,"{SECRET}', CSV),
        (f"secret={SECRET}\xe4", FORM),
        (SECRET, "text/plain"),
        (SECRET, "application/octet-stream"),
        (f'{{"secret": "{SECRET}"}}' + " " * payload_capture.MOST_READ, JSON),
    ],
)
def test_what_cannot_be_read_is_not_kept_and_says_so(content: str | bytes, media_type: str) -> None:
    found = kept(content, media_type)
    assert found.body == b""
    assert found.left_out
    assert SECRET not in found.left_out


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ""),
        ("id=eq.1&secret=eq.s", "id=eq.1&secret=[redacted]"),
        ("secre%74=eq.s", "secre%74=[redacted]"),
        ("secret->>a=eq.s&secret->b=gt.1", "secret->>a=[redacted]&secret->b=[redacted]"),
        ("related.secret=eq.s", "related.secret=[redacted]"),
        ('"secret"=eq.s', '"secret"=[redacted]'),
        ("pin=in.(1,2)", "pin=[redacted]"),
        ("or=(id.eq.1,secret.eq.s)", "or=[redacted]"),
        ("not.and=(id.eq.1,not.or(secre%74.eq.s))", "not.and=[redacted]"),
        ("related.or=(secret.eq.s)", "related.or=[redacted]"),
        ("or=(id.eq.1,id.eq.2)", "or=(id.eq.1,id.eq.2)"),
        ("select=id,secret&order=secret&columns=secret", "select=id,secret&order=secret&columns=secret"),
        ("secrets=eq.s&secret", "secrets=eq.s&secret"),
    ],
)
def test_filters_do_not_tell_what_redacted_columns_are_compared_with(query: str, expected: str) -> None:
    assert CAPTURE.query(query, TABLE) == expected


def test_a_query_is_left_alone_where_nothing_is_to_be_redacted() -> None:
    assert CAPTURE.query("pin=eq.1", "public.orders") == "pin=eq.1"
    assert Capture(1000).query("secret=eq.1", TABLE) == "secret=eq.1"
