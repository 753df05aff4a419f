"""The gateway of the admission tests, and every way in which a request can raise a fence there, or prepare to.

Its rows and objects belong to the resources ``{kind}/{name}``. The kind is the policy of the resource, or ``watched``,
for which the rules of table and bucket only observe.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode, urlsplit
from uuid import UUID

import asyncpg
import httpx
from mypy_boto3_s3 import S3Client

from gateway.auth.sigv4 import RequestHead, StoreCredentials, presign
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.sequencer import Sequencer, Signer
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token
from tests.doubles.s3 import S3Double, serve
from tests.objects.clients import call, connect, outcome
from tests.objects.object_gateway import Stage
from tests.objects.raw import Reply
from tests.objects.test_forms import TOKEN as FORM_TOKEN
from tests.objects.test_forms import post, signed
from tests.patience import patient_trips
from tests.postgres import fresh_database
from tests.running import ACCESS_KEY, API_KEY, PAIR, SECRET_KEY, Events, config, running
from tests.waiting import PATIENCE

KEYS = ["k" * 32, "former".ljust(32, "-")]
SIGNER = Signer(KEYS)
ADMIN_KEY = "admin-api-key"
FORGED = (str(MAX_VALUE), f"{MAX_EPOCH}.1")

CALLERS = [
    {"name": "writer", **PAIR, "api_key": API_KEY},
    {"name": "admin", "api_key": ADMIN_KEY, "groups": ["admins"]},
]
RULES: dict[str, Any] = {
    "resources": [{"match": f"{kind}/**", "tokens": kind} for kind in ("issued", "signed", "live")],
    "tables": [
        {"name": "public.docs", "resource": "{kind}/{name}"},
        {"name": "public.watched", "resource": "watched/{name}", "mode": "observe"},
    ],
    "objects": [
        {"match": "bucket/watched/{name}/**", "resource": "watched/{name}", "mode": "observe"},
        {"match": "bucket/{kind}/{name}/**", "resource": "{kind}/{name}"},
    ],
}
SCHEMA = """
CREATE TABLE docs (kind text, name text, note text, PRIMARY KEY (kind, name));
CREATE TABLE watched (name text PRIMARY KEY, note text);
CREATE FUNCTION annotate(kind text, name text, note text) RETURNS void LANGUAGE sql VOLATILE AS
    'UPDATE docs d SET note = $3 WHERE d.kind = $1 AND d.name = $2';
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """The credentials of a writer: a token, or a sequencer, or both."""

    token: str | None = None
    sequencer: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        named = {"Fencing-Token": self.token, "Fencing-Sequencer": self.sequencer}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def bare(self) -> str:
        """The token, wherever it stands."""
        return self.token or str(Sequencer.parse(self.sequencer or "").token)


@dataclass(frozen=True, slots=True)
class World:
    """A running gateway, the clients of its two callers, and a session of its database."""

    stage: Stage
    api: httpx.AsyncClient
    admin: httpx.AsyncClient
    database: asyncpg.Connection

    async def leased(self, resource: str, holder: str = "ann", ttl: float = 60) -> dict[str, Any]:
        """A lease of the built-in lease service."""
        answer = await self.api.post(f"/v1/leases/{resource}", json={"holder": holder, "ttl": ttl})
        assert answer.status_code in (200, 201), answer.text
        lease: dict[str, Any] = answer.json()
        return lease

    async def released(self, lease: dict[str, Any]) -> None:
        answer = await self.api.delete(f"/v1/leases/{lease['resource']}/{lease['lease']}")
        assert answer.status_code == 204, answer.text

    async def lapsed(self, lease: dict[str, Any]) -> None:
        """As if its time were over."""
        await self.database.execute(
            "UPDATE fencing.lease SET expires_at = clock_timestamp() WHERE id = $1", UUID(lease["lease"])
        )

    async def fence(self, resource: str) -> str | None:
        """The token that the fence carries."""
        row = await self.database.fetchrow("SELECT epoch, value FROM fencing.fence WHERE resource = $1", resource)
        return None if row is None else str(Token(row["epoch"], row["value"]))

    async def on_record(self, resource: str) -> list[tuple[str, str | None, bool]]:
        """Reason, token and whether it was enforced, of everything refused or noted; the oldest first."""
        rows = await self.database.fetch("SELECT * FROM fencing.rejection WHERE resource = $1 ORDER BY at", resource)
        return [
            (row["reason"], None if row["value"] is None else str(Token(row["epoch"], row["value"])), row["enforced"])
            for row in rows
        ]

    async def row(self, resource: str) -> str | None:
        """The note in the row of a resource; None where there is no row."""
        kind, _, name = resource.partition("/")
        note: str | None = await self.database.fetchval(
            "SELECT note FROM docs WHERE (kind, name) = ($1, $2)", kind, name
        )
        return note

    async def insert(self, resource: str) -> None:
        """The row of a resource, as if it had always been there."""
        kind, _, name = resource.partition("/")
        await self.database.execute("INSERT INTO docs VALUES ($1, $2, 'before') ON CONFLICT DO NOTHING", kind, name)


@asynccontextmanager
async def opened(postgres: EmbeddedPostgres, **sections: Any) -> AsyncIterator[World]:
    """A world of one's own. ``sections`` of the configuration replace those of the usual one.

    Tests count the writes on the fast path. A shared trip that takes too long, on a busy machine, takes them off it.
    """
    double, events = S3Double(buckets=["bucket"]), Events()
    async with fresh_database(postgres) as dsn, serve(double) as endpoint:
        connection = await asyncpg.connect(dsn)
        await connection.execute(SCHEMA)
        usual = {
            "postgres": {"dsn": dsn, "functions": ["public.annotate"]},
            "callers": CALLERS,
            "leases": {"signing_keys": KEYS},
        }
        with patient_trips():
            async with (
                running(config(dsn, endpoint, **{**usual, **RULES, **sections}), events) as origin,
                _client(origin, API_KEY) as api,
                _client(origin, ADMIN_KEY) as admin,
            ):
                yield World(Stage(origin, endpoint, double, events, dsn), api, admin, connection)
        await connection.close()


def _client(origin: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE)


def sequencer(resource: str, token: str, mode: str = "exclusive", signer: Signer = SIGNER) -> str:
    text = signer.sign(resource, mode, Token.parse(token))
    assert text is not None
    return text


Said: TypeAlias = tuple[int, str]
Way: TypeAlias = Callable[[World, str, Shown], Awaitable[Said]]
"""A way to raise a fence, or to prepare to. It takes what is shown, and gives status and code."""


def client(world: World, shown: Shown, **settings: Any) -> S3Client:
    """A boto3 client that sends ``shown`` in signed headers."""
    opened = connect(world.stage.origin, **settings)

    def present(params: dict[str, Any], **_: Any) -> None:
        params["headers"].update(shown.headers)

    opened.meta.events.register("before-call.s3", present)
    return opened


def _key(resource: str) -> str:
    return f"{resource}/file"


def _said(answer: httpx.Response) -> Said:
    if answer.is_success:
        return answer.status_code, ""
    is_xml = answer.headers["content-type"].startswith("application/xml")
    return answer.status_code, Reply(0, {}, answer.content).code if is_xml else answer.json()["code"]


# Tables -------------------------------------------------------------------------------------------------------------


def row_of(resource: str) -> str:
    """The query of the row of a resource."""
    kind, _, name = resource.partition("/")
    return f"kind=eq.{kind}&name=eq.{name}"


async def _written(
    world: World, resource: str, headers: dict[str, str], method: str = "PATCH", query: str | None = None
) -> Said:
    kind, _, name = resource.partition("/")
    await world.insert(resource)
    body = {"note": "after"} | ({} if method == "PATCH" else {"kind": kind, "name": name})
    path = f"/v1/tables/docs?{row_of(resource) if query is None else query}"
    return _said(await world.api.request(method, path, json=None if method == "DELETE" else body, headers=headers))


async def patch(world: World, resource: str, shown: Shown) -> Said:
    return await _written(world, resource, shown.headers)


async def upsert(world: World, resource: str, shown: Shown) -> Said:
    headers = {**shown.headers, "Prefer": "resolution=merge-duplicates"}
    return await _written(world, resource, headers, "POST", "on_conflict=kind,name")


async def put_a_row(world: World, resource: str, shown: Shown) -> Said:
    return await _written(world, resource, shown.headers, "PUT")


async def delete_a_row(world: World, resource: str, shown: Shown) -> Said:
    return await _written(world, resource, shown.headers, "DELETE")


async def pairs(world: World, resource: str, shown: Shown) -> Said:
    headers = shown.headers
    if shown.token is not None:
        headers["Fencing-Token"] = f"any/{resource.partition('/')[2]}-other=1, {resource}={shown.token}"
    return await _written(world, resource, headers)


async def idempotent(world: World, resource: str, shown: Shown) -> Said:
    return await _written(world, resource, {**shown.headers, "Idempotency-Key": f'"{resource}-{shown.bare}"'})


async def call_a_function(world: World, resource: str, shown: Shown) -> Said:
    kind, _, name = resource.partition("/")
    await world.insert(resource)
    headers = {**shown.headers, "Fencing-Resource": resource}
    body = {"kind": kind, "name": name, "note": "after"}
    return _said(await world.api.post("/v1/tables/rpc/annotate", json=body, headers=headers))


async def transaction(world: World, resource: str, shown: Shown) -> Said:
    await world.insert(resource)
    name = f"beside-{resource.partition('/')[2]}"
    honest = {"method": "POST", "table": "docs", "body": {"kind": "any", "name": name}, "token": "1"}
    fields = {"token": shown.token, "sequencer": shown.sequencer}
    write = {"method": "PATCH", "table": "docs", "query": row_of(resource), "body": {"note": "after"}}
    answer = await world.api.post("/v1/transaction", json={"writes": [honest, write | fields]})
    done = await world.database.execute("DELETE FROM docs WHERE name = $1", name)
    assert done == f"DELETE {int(answer.is_success)}"
    return _said(answer)


# Objects ------------------------------------------------------------------------------------------------------------


async def put(world: World, resource: str, shown: Shown) -> Said:
    return await outcome(client(world, shown).put_object, Key=_key(resource), Body=b"after")


async def put_in_parts(world: World, resource: str, shown: Shown) -> Said:
    """More than is put from memory, so it is staged."""
    return await outcome(client(world, shown).put_object, Key=_key(resource), Body=b"x" * (9 * 1024 * 1024))


async def copy(world: World, resource: str, shown: Shown) -> Said:
    world.stage.double.put("bucket", "any/source/file", b"after")
    source = {"Bucket": "bucket", "Key": "any/source/file"}
    return await outcome(client(world, shown).copy_object, Key=_key(resource), CopySource=source)


async def delete(world: World, resource: str, shown: Shown) -> Said:
    return await outcome(client(world, shown).delete_object, Key=_key(resource))


async def delete_many(world: World, resource: str, shown: Shown) -> Said:
    wanted = {"Objects": [{"Key": _key(resource)}]}
    answer = await call(client(world, shown).delete_objects, Delete=wanted)
    errors = answer.get("Errors", [])
    return (403, errors[0]["Code"]) if errors else (200, "")


async def open_upload(world: World, resource: str, shown: Shown) -> Said:
    return await outcome(client(world, shown).create_multipart_upload, Key=_key(resource))


async def complete_upload(world: World, resource: str, shown: Shown) -> Said:
    """Opened with something honest, and completed with what is shown."""
    place, honest = await _opened(world, resource), connect(world.stage.origin)
    part = await call(honest.upload_part, **place, PartNumber=1, Body=b"after")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    return await outcome(client(world, shown).complete_multipart_upload, **place, MultipartUpload=parts)


async def upload_part(world: World, resource: str, shown: Shown) -> Said:
    place = await _opened(world, resource)
    return await outcome(client(world, shown).upload_part, **place, PartNumber=1, Body=b"after")


async def _opened(world: World, resource: str) -> dict[str, str]:
    """The key and the id of an upload, opened by the holder of a lease."""
    honest = {"token": "1", "sequencer": None}
    lease = honest if resource.startswith("any/") else await world.leased(resource, "uploader")
    opened = client(world, Shown(lease["token"], lease["sequencer"]))
    upload: str = (await call(opened.create_multipart_upload, Key=_key(resource)))["UploadId"]
    return {"Key": _key(resource), "UploadId": upload}


async def tag(world: World, resource: str, shown: Shown) -> Said:
    world.stage.double.put("bucket", _key(resource), b"before")
    tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
    return await outcome(client(world, shown).put_object_tagging, Key=_key(resource), Tagging=tags)


async def metadata(world: World, resource: str, shown: Shown) -> Said:
    said = {name.lower(): value for name, value in shown.headers.items()}
    return await outcome(connect(world.stage.origin).put_object, Key=_key(resource), Body=b"after", Metadata=said)


async def session(world: World, resource: str, shown: Shown) -> Said:
    said = urlencode({name.lower(): value for name, value in shown.headers.items()})
    s3 = connect(world.stage.origin, aws_session_token=said)
    return await outcome(s3.put_object, Key=_key(resource), Body=b"after")


async def form(world: World, resource: str, shown: Shown) -> Said:
    fields = {FORM_TOKEN: shown.bare}
    if shown.sequencer is not None:
        fields["x-amz-meta-fencing-sequencer"] = shown.sequencer
    return _said(await post(signed(world.stage.origin, _key(resource), fields), b"after"))


async def presigned(world: World, resource: str, shown: Shown) -> Said:
    origin, path = world.stage.origin, f"/bucket/{_key(resource)}"
    query = "&".join(f"{name.lower()}={quote(value, safe='')}" for name, value in shown.headers.items())
    head = RequestHead("PUT", path.encode(), query.encode(), [(b"host", urlsplit(origin).netloc.encode())])
    signature = presign(
        head, StoreCredentials(ACCESS_KEY, SECRET_KEY, "us-east-1"), datetime.now(UTC), timedelta(minutes=5)
    )
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        return _said(await http.put(f"{origin}{path}?{signature}", content=b"after"))


# The fencing API ----------------------------------------------------------------------------------------------------


async def barrier(world: World, resource: str, shown: Shown) -> Said:
    body = {"token": shown.bare, "sequencer": shown.sequencer}
    return _said(await world.api.post(f"/v1/fences/{resource}/barrier", json=body))


async def credentials(world: World, resource: str, shown: Shown) -> Said:
    """Issued, and used if they are."""
    return await _with_credentials(world, resource, resource, shown)


async def wide_credentials(world: World, resource: str, shown: Shown) -> Said:
    """For many resources, so that nothing can be looked at before they are used."""
    return await _with_credentials(world, resource, f"{resource.partition('/')[0]}/*", shown)


async def _with_credentials(world: World, resource: str, pattern: str, shown: Shown) -> Said:
    body = {"resource": pattern, "token": shown.bare, "sequencer": shown.sequencer}
    answer = await world.api.post("/v1/credentials", json=body)
    if not answer.is_success:
        return _said(answer)
    issued = answer.json()
    s3 = connect(
        world.stage.origin,
        access_key=issued["access_key_id"],
        secret_key=issued["secret_access_key"],
        aws_session_token=issued["session_token"],
    )
    return await outcome(s3.put_object, Key=_key(resource), Body=b"after")


WAYS: dict[str, Way] = {
    way.__name__.replace("_", " "): way
    for way in (
        *(patch, upsert, put_a_row, delete_a_row, call_a_function, transaction, pairs, idempotent),
        *(put, put_in_parts, copy, delete, delete_many, open_upload, upload_part, complete_upload, tag),
        *(metadata, session, form, presigned, barrier, credentials, wide_credentials),
    )
}
