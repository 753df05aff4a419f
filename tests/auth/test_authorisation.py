"""Nothing is done without a grant: every route of every plane, for callers that are granted one action each."""

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio

from gateway import api
from gateway.api.authorisation import About
from gateway.api.routes import Route
from gateway.auth.grants import Action
from gateway.auth.sigv4 import RequestHead, StoreCredentials, sign
from gateway.db import record
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.record import Refusal, Rejection
from gateway.objects.authorisation import ABOUT_A_BUCKET
from gateway.objects.s3.operations import Level, Operation, OperationKind
from tests.doubles.s3 import S3Double
from tests.objects.object_gateway import Stage, staged
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

NAMES = [*Action, "nothing"]
"""One caller for each action, and one that is granted nothing."""


def caller(name: str, **more: Any) -> dict[str, Any]:
    keys = {"api_key": f"key-of-{name}", "access_key_id": f"ID{name}", "secret_access_key": f"secret-of-{name}"}
    return {"name": name, **keys, **more}


CALLERS = [
    *(caller(name) for name in NAMES),
    *(caller(name) for name in ("clerk", "keeper", "looker", "root")),
    caller("reader", groups=["readers"]),
]
GRANTS = [
    *({"callers": [action.value], "actions": [action.value], "everything": True} for action in Action),
    {"callers": ["root"], "actions": [action.value for action in Action], "everything": True},
    {
        "callers": ["clerk"],
        "actions": ["read", "write", "call", "lock", "barrier", "credentials"],
        "tables": ["public.orders"],
        "functions": ["public.reckon"],
        "buckets": ["bucket/in/**"],
        "resources": ["order/*", "s3/bucket/in/**"],
    },
    {"callers": ["keeper"], "actions": ["administer"], "buckets": ["scratch"]},
    {"callers": ["looker"], "actions": ["read"], "resources": ["order/*"]},
    {"callers": ["group:readers"], "actions": ["read"], "tables": ["public.lines"], "buckets": ["bucket"]},
    {"callers": ["reader"], "actions": ["write"], "tables": ["public.orders"]},
    {"callers": ["anonymous"], "actions": ["read"], "buckets": ["bucket/public/**"]},
]
SCHEMA = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, state text)",
    "INSERT INTO orders SELECT id, 'new' FROM generate_series(1, 9) AS id",
    "CREATE TABLE lines (id bigint PRIMARY KEY, order_id bigint REFERENCES orders, text text)",
    "INSERT INTO lines VALUES (1, 1, 'secret')",
    "CREATE FUNCTION reckon() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 1'",
    "CREATE FUNCTION audit_all() RETURNS bigint LANGUAGE sql STABLE AS 'SELECT 1'",
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    async with staged(
        postgres_server,
        S3Double(buckets=["bucket", "other", "scratch"]),
        callers=CALLERS,
        grants=GRANTS,
        tables=[{"name": "public.orders", "resource": "order/{id}"}],
        postgres={"functions": ["public.reckon", "public.audit_all"]},
    ) as one:
        for statement in SCHEMA:
            await one.rows(statement)
        async with httpx.AsyncClient(base_url=one.origin, timeout=PATIENCE) as Client.http:
            async with asyncio.timeout(PATIENCE):
                while (await Client(one, "root").api("GET", "/v1/tables/lines")).status_code != 200:
                    await asyncio.sleep(0.05)
            yield one


@dataclass(frozen=True)
class Client:
    """Requests of one caller. None: without credentials."""

    stage: Stage
    name: str | None
    http: ClassVar[httpx.AsyncClient]

    async def api(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        key = {} if self.name is None else {"Authorization": f"Bearer key-of-{self.name}"}
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.request(method, path, json=body, headers={**key, **sent})

    async def s3(self, method: str, target: str, body: bytes = b"", **headers: str) -> httpx.Response:
        """Send a request, signed unless there is no caller. ``target``: path and query, as they are sent."""
        path, _, query = target.partition("?")
        host = self.stage.origin.removeprefix("http://")
        sent = [("host", host), *((name.replace("_", "-"), value) for name, value in headers.items())]
        if self.name is not None:
            raw = [(name.encode(), value.encode()) for name, value in sent]
            head = RequestHead(method, path.encode(), query.encode(), raw)
            keys = StoreCredentials(f"ID{self.name}", f"secret-of-{self.name}", "us-east-1")
            sent += sign(head, hashlib.sha256(body).hexdigest(), keys, datetime.now(UTC))
        return await self.http.request(method, target, content=body, headers=dict(sent))


def is_denied(answer: httpx.Response) -> bool:
    """Return whether a grant was missing: by the code of the API, or by the words of S3's error."""
    if answer.status_code != 403:
        return False
    if answer.headers.get("content-type", "").startswith("application/xml"):
        return b"lacks the grant" in answer.content
    return answer.request.method == "HEAD" or answer.json()["code"] == "denied"


async def denied(stage: Stage, names: Iterable[str], ask: Callable[["Client"], Awaitable[httpx.Response]]) -> set[str]:
    """Return the callers that lack a grant for a request. They ask at once, so their denials share a batch."""
    asked = list(names)
    answers = await asyncio.gather(*(ask(Client(stage, name)) for name in asked))
    return {name for name, answer in zip(asked, answers, strict=True) if is_denied(answer)}


def body_of(path: str) -> Any:
    """Return a body that is about ``order/5``."""
    return {
        "/v1/leases": {"leases": [{"resource": "order/5", "lease": str(uuid4())}]},
        "/v1/credentials": {"resource": "order/5", "token": "1"},
        "/v1/sequencers/check": {"sequencer": "order/5:exclusive:34:abc"},
        "/v1/transaction": {"writes": [{"method": "PATCH", "table": "orders", "query": "id=eq.5", "body": {}}]},
    }.get(path)


ROUTES = [one for one in api.ROUTES if not one.path.endswith("/stream") and "docs" not in one.path]


@pytest.mark.parametrize("route", first(ROUTES), ids=lambda one: f"{one.method} {one.path}")
async def test_a_route_needs_its_grant_and_no_other(stage: Stage, route: Route) -> None:
    method, path, rule = route.method, route.path, route.rule
    target = path.replace("{resource:path}", "order/5").replace("{lease}", str(uuid4())).replace("{id}", str(uuid4()))
    needs = rule.about not in (About.PUBLIC, About.CALLERS, About.OWN_ENTRIES)
    expected = set(NAMES) - set(rule.actions) if needs else set()
    asked = target.replace("{name}", "hook")
    assert await denied(stage, NAMES, lambda client: client.api(method, asked, body_of(path))) == expected
    open_to_all = rule.about is About.PUBLIC or path.endswith("/metrics")  # these are, on the host of the gateway
    answer = await Client(stage, None).api(method, target, body_of(path))
    assert (answer.status_code == 401) != open_to_all, answer.text[:300]


async def test_renewals_that_are_not_granted_do_not_hold_the_others_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their denials share batches, and each lock is denied once. One of them is held by another caller."""
    batches: list[int] = []
    put = record.record_rejections

    async def counted(database: Database, refusals: Sequence[Refusal], traces: Mapping[str, str]) -> list[Rejection]:
        batches.append(len(refusals))
        return await put(database, refusals, traces)

    monkeypatch.setattr(record, "record_rejections", counted)
    clerk = Client(stage, "clerk")
    wish = {"holder": "a", "ttl": 60}
    own = {"resource": "order/7", "lease": (await clerk.api("POST", "/v1/leases/order/7", wish)).json()["lease"]}
    foreign = [{"resource": f"beyond/{n % 100}", "lease": str(uuid4())} for n in range(299)]
    other = (await Client(stage, "lock").api("POST", "/v1/leases/beyond/99", wish)).json()["lease"]
    foreign.append({"resource": "beyond/99", "lease": other})
    answer = await clerk.api("PUT", "/v1/leases", {"leases": [*foreign, own]})
    # There is a pause after each batch. With one batch for each denial, the pauses alone would take five seconds.
    assert sum(batches) == 100
    assert len(batches) < 10, batches
    kept = [one["expires_in"] is not None for one in answer.json()["leases"]]
    assert kept == [False] * 300 + [True]
    assert len(await stage.rows("SELECT FROM fencing.rejection WHERE resource LIKE 'beyond/%'")) == 100


def needed(operation: Operation) -> set[str]:
    if operation is Operation.CREATE_BUCKET:
        return {"administer", "write"}  # a writer hears that the bucket exists
    if operation.kind is OperationKind.ADMINISTRATION:
        return {"administer"}
    if operation is Operation.LIST_BUCKETS:
        return {"read", "write", "administer"}
    if operation in ABOUT_A_BUCKET:
        return {"read", *ABOUT_A_BUCKET[operation]}
    return {"read"} if operation.kind is OperationKind.READ else {"write"}


def target_of(operation: Operation) -> str:
    bucket = "bucket" if operation is Operation.CREATE_BUCKET else "scratch"  # another request deletes that one
    path = {Level.SERVICE: "/", Level.BUCKET: f"/{bucket}", Level.OBJECT: f"/{bucket}/key"}[operation.level]
    query = "&".join(f"{name}={2 if name == 'list-type' else 1}" for name in sorted(operation.markers))
    return f"{path}?{query}".rstrip("?")


@pytest.mark.parametrize("operation", first(Operation), ids=str)
async def test_an_operation_of_s3_needs_its_grant_and_no_other(stage: Stage, operation: Operation) -> None:
    more: dict[str, Any] = {"x_amz_copy_source": "/scratch/other"} if operation.copies else {}
    names = {"read", "write", "administer", "lock", "nothing"}
    expected = names if operation.copies else names - needed(operation)  # a copy needs read for its source, and write
    target = target_of(operation)

    def ask(client: Client) -> Awaitable[httpx.Response]:
        return client.s3(operation.method, target, fencing_token="1", **more)

    assert await denied(stage, names, ask) == expected


TABLE_REQUESTS = [
    ("GET", "/v1/tables/orders?id=eq.5", "read"),
    ("HEAD", "/v1/tables/orders?id=eq.5", "read"),
    ("OPTIONS", "/v1/tables/orders", "read write"),
    ("POST", "/v1/tables/orders", "write"),
    ("PATCH", "/v1/tables/orders?id=eq.5", "write"),
    ("PUT", "/v1/tables/orders?id=eq.5", "write"),
    ("DELETE", "/v1/tables/orders?id=eq.5", "write"),
    ("GET", "/v1/tables/rpc/audit_all", "call"),
    ("POST", "/v1/tables/rpc/audit_all", "call"),
    ("POST", "/v1/tables/rpc/reckon", "call"),
    ("OPTIONS", "/v1/tables/rpc/reckon", "call"),
]


@pytest.mark.parametrize("request_of_a_table", first(TABLE_REQUESTS), ids=str)
async def test_a_request_to_a_table_needs_its_grant_and_no_other(
    stage: Stage, request_of_a_table: tuple[str, str, str]
) -> None:
    method, target, actions = request_of_a_table
    path, _, query = target.partition("?")
    body = {"id": 5} if method in ("POST", "PATCH", "PUT") else None
    for asked in (target, f"{path}_that_is_not_there?{query}"):

        def ask(client: Client, asked: str = asked) -> Awaitable[httpx.Response]:
            return client.api(method, asked, body, fencing_token="1")

        assert await denied(stage, NAMES, ask) == set(NAMES) - set(actions.split())
    assert (await Client(stage, None).api(method, target)).status_code == 401


async def test_a_resource_limits_writes(stage: Stage) -> None:
    """The clerk writes orders under their locks, and nothing under any other resource."""
    clerk = Client(stage, "clerk")
    for _ in range(3):
        taken = await clerk.api("PATCH", "/v1/tables/orders?id=eq.1", {"state": "x"}, fencing_token="3")
        assert taken.status_code == 204
    other = await clerk.api("POST", "/v1/tables/rpc/reckon", {}, fencing_token="3", fencing_resource="account/1")
    assert is_denied(other)
    assert "resource account/1 at function public.reckon" in other.json()["message"]
    allowed = await clerk.api("POST", "/v1/tables/rpc/reckon", {}, fencing_token="3", fencing_resource="order/1")
    assert allowed.status_code == 200
    for method, path, body in (
        ("POST", "/v1/leases/account/1", {"holder": "a", "ttl": 5}),
        ("POST", "/v1/fences/account/1/barrier", {"token": "1"}),
        ("POST", "/v1/credentials", {"resource": "account/1", "token": "1"}),
        ("POST", "/v1/credentials", {"resource": "**", "token": "1"}),
        ("POST", "/v1/credentials", {"resource": "order/**", "token": "1"}),
    ):
        assert is_denied(await clerk.api(method, path, body)), path
    assert (await clerk.api("POST", "/v1/leases/order/1", {"holder": "a", "ttl": 5})).status_code == 201
    assert (await clerk.api("POST", "/v1/credentials", {"resource": "order/*", "token": "4"})).status_code == 201
    # No fence of a resource beyond the grant has ever been raised.
    assert await stage.rows("SELECT FROM fencing.fence WHERE resource LIKE 'account/%'") == []


async def test_rows_of_a_related_table_need_a_grant(stage: Stage) -> None:
    clerk = Client(stage, "clerk")
    assert (await clerk.api("GET", "/v1/tables/orders?id=eq.1&select=id")).status_code == 200
    for target in (
        "orders?select=id,lines(text)",
        "orders?select=id,lines!inner()",
        "orders?id=eq.1&select=id,lines(text)",
    ):
        for _ in range(2):
            answer = await clerk.api("GET", f"/v1/tables/{target}")
            assert is_denied(answer)
            assert "secret" not in answer.text
        assert (await Client(stage, "read").api("GET", f"/v1/tables/{target}")).status_code == 200


async def test_who_writes_does_not_see_rows(stage: Stage) -> None:
    reader = Client(stage, "reader")
    for prefer, denied in (("return=representation", True), ("return=minimal", False), ("return=representation", True)):
        answer = await reader.api("PATCH", "/v1/tables/orders?id=eq.3", {}, fencing_token="1", prefer=prefer)
        assert is_denied(answer) == denied
        answer = await Client(stage, "clerk").api(
            "PATCH", "/v1/tables/orders?id=eq.3", {"state": "y"}, fencing_token="1", prefer=prefer
        )
        assert answer.status_code in (200, 204)


async def test_one_write_of_a_list_without_a_grant_refuses_all(stage: Stage) -> None:
    writes = [
        {"method": "PATCH", "table": "orders", "query": "id=eq.4", "body": {"state": "z"}, "token": "9"},
        {"method": "DELETE", "table": "lines", "query": "id=eq.1", "token": "9"},
    ]
    answer = await Client(stage, "clerk").api("POST", "/v1/transaction", {"writes": writes})
    assert is_denied(answer)
    assert answer.json()["write"] == 1
    (row,) = await stage.rows("SELECT state FROM orders WHERE id = 4")
    assert row["state"] == "new"
    assert await stage.rows("SELECT FROM fencing.fence WHERE resource = 'order/4'") == []


async def test_keys_beyond_the_prefix_are_denied(stage: Stage) -> None:
    clerk, root = Client(stage, "clerk"), Client(stage, "root")
    for key in ("in/a", "out/a", "public/a"):
        assert (await root.s3("PUT", f"/bucket/{key}", b"x", fencing_token="1")).status_code == 200
    assert (await clerk.s3("PUT", "/bucket/in/b", b"x", fencing_token="1")).status_code == 200
    listings = ("", "&prefix=in", "&prefix=out%2F")
    for method, target, body in (
        *(("PUT", path, b"x") for path in ("/bucket/out/b", "/bucket/in", "/other/in/b")),
        *(("GET", f"/bucket?list-type=2{prefix}", b"") for prefix in listings),
        *(("GET", target, b"") for target in ("/bucket/out/a", "/bucket?policy=", "/other?location=")),
        ("DELETE", "/bucket/out/a", b""),
        ("POST", "/bucket/out/b?uploads=", b""),
    ):
        answer = await clerk.s3(method, target, body, **({"fencing_token": "1"} if body else {}))
        assert answer.status_code == 400 or is_denied(answer), (method, target, answer.text)
    listed = await clerk.s3("GET", "/bucket?list-type=2&prefix=in%2F")
    assert listed.status_code == 200
    assert b"<Key>in/a</Key>" in listed.content
    assert b"out" not in listed.content
    buckets = (await clerk.s3("GET", "/")).content
    assert (buckets.count(b"<Bucket>"), b"<Name>bucket</Name>" in buckets) == (1, True)
    assert (await clerk.s3("HEAD", "/bucket")).status_code == 200
    assert (await clerk.s3("GET", "/bucket?location=")).status_code == 200


DESTINATIONS = {
    "logging=": "<BucketLoggingStatus><LoggingEnabled><TargetBucket>{0}</TargetBucket></LoggingEnabled>"
    "</BucketLoggingStatus>",
    "replication=": "<ReplicationConfiguration><Rule><Destination><Bucket>arn:aws:s3:::scratch</Bucket></Destination>"
    "</Rule><Rule><Destination><Bucket>arn:aws:s3:::{0}</Bucket></Destination></Rule></ReplicationConfiguration>",
    "inventory=&id=1": "<I:InventoryConfiguration xmlns:I='x'><I:Destination><I:S3BucketDestination><I:Bucket>"
    "arn:aws:s3:::{0}</I:Bucket></I:S3BucketDestination></I:Destination></I:InventoryConfiguration>",
    "analytics=&id=1": "<AnalyticsConfiguration><StorageClassAnalysis><DataExport><Destination><S3BucketDestination>"
    "<Bucket> arn:aws:s3:::{0} </Bucket></S3BucketDestination></Destination></DataExport></StorageClassAnalysis>"
    "</AnalyticsConfiguration>",
}


@pytest.mark.parametrize("query", DESTINATIONS)
async def test_the_store_writes_to_no_bucket_that_the_caller_does_not_administer(stage: Stage, query: str) -> None:
    """Its logs, copies and reports carry no token, so they need the grant for the bucket in which they arrive."""

    async def put(name: str, destination: str) -> httpx.Response:
        document = DESTINATIONS[query].format(destination).encode()
        digest = base64.b64encode(hashlib.md5(document).digest()).decode()
        return await Client(stage, name).s3("PUT", f"/scratch?{query}", document, content_md5=digest)

    asked = len(stage.double.requests)
    denied = await put("keeper", "bucket")
    assert (is_denied(denied), b"administer for bucket bucket" in denied.content) == (True, True), denied.text
    assert len(stage.double.requests) == asked
    for name, destination in (("keeper", "scratch"), ("administer", "bucket")):
        answer = await put(name, destination)
        assert (answer.status_code, b"The double has no PUT" in answer.content) == (501, True), answer.text
    assert (await put("keeper", "")).status_code in (400, 403)


async def test_each_key_of_a_deletion_needs_a_grant(stage: Stage) -> None:
    root = Client(stage, "root")
    for key in ("in/gone", "out/kept"):
        await root.s3("PUT", f"/bucket/{key}", b"x", fencing_token="1")
    document = b"<Delete><Object><Key>in/gone</Key></Object><Object><Key>out/kept</Key></Object></Delete>"
    digest = base64.b64encode(hashlib.md5(document).digest()).decode()
    answer = await Client(stage, "clerk").s3("POST", "/bucket?delete=", document, fencing_token="2", content_md5=digest)
    assert answer.status_code == 200
    assert b"<Deleted><Key>in/gone</Key>" in answer.content
    assert b"<Key>out/kept</Key><Code>AccessDenied</Code>" in answer.content
    assert stage.body("out/kept") == b"x"


async def test_credentials_that_are_wrong_do_not_become_anonymous(stage: Stage) -> None:
    """The public may read this page."""
    await Client(stage, "root").s3("PUT", "/bucket/public/page", b"hello", fencing_token="1")
    public = Client(stage, None)
    assert (await public.s3("GET", "/bucket/public/page")).status_code == 200
    forged = await public.s3("GET", "/bucket/public/page", authorization="AWS4-HMAC-SHA256 Credential=x")
    assert forged.status_code == 400
    assert (await public.s3("GET", "/bucket/public/page?X-Amz-Signature=0")).status_code == 400


async def test_denials_are_on_record_with_what_is_missing(stage: Stage) -> None:
    nothing = Client(stage, "nothing")
    answers = [
        await nothing.api("DELETE", "/v1/tables/orders?id=eq.2", fencing_token="7"),
        await nothing.s3("PUT", "/bucket/in/x", b"x", fencing_token="7"),
        await nothing.api("POST", "/v1/fences/order/2/barrier", {"token": "7"}),
    ]
    assert [is_denied(answer) for answer in answers] == [True] * 3
    assert (answers[0].json()["message"], answers[2].json()["action"]) == (
        "The caller nothing lacks the grant write for table public.orders. No grant names this caller.",
        "barrier",
    )
    found = (await Client(stage, "audit").api("GET", "/v1/rejections?caller=nothing&limit=3")).json()["rejections"]
    assert [(one["reason"], one["plane"], one["resource"]) for one in found] == [
        ("denied", "api", "order/2"),
        ("denied", "objects", "s3/bucket/in/x"),
        ("denied", "tables", "public.orders"),
    ]
    assert found[0]["id"] == answers[2].json()["rejection"]


async def test_the_description_shows_what_the_caller_may_use(stage: Stage) -> None:
    seen = {}
    for name in ("root", "clerk", "nothing", "looker"):
        answer = await Client(stage, name).api("GET", "/v1/tables/")
        assert answer.status_code == 200
        seen[name] = {path for path in answer.json()["paths"] if path != "/"}
    assert {"/orders", "/lines", "/rpc/reckon", "/rpc/audit_all"} <= seen["root"]
    assert seen["clerk"] == {"/orders", "/rpc/reckon"}
    assert seen["nothing"] == set()
    assert seen["looker"] == set()
