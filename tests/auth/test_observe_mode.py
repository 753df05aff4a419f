"""Observe mode passes each write at a place that a grant names, and records the missing grant of its resource.

It lends no rights: a place that no grant names stays closed, and no fence is raised without its grant.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest
import pytest_asyncio
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from tests.objects.clients import call, connect, opened, outcome, refused
from tests.objects.object_gateway import Stage, staged, store
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOKEN = "99"
NAMES = ["shop", "jobs", "team", "root"]
CALLERS = [
    {"name": name, "api_key": f"key-of-{name}", "access_key_id": f"ID{name}", "secret_access_key": f"secret-of-{name}"}
    for name in NAMES
]
WRITES = ["read", "write", "call"]
GRANTS: list[dict[str, Any]] = [
    {
        "callers": ["shop"],
        "actions": WRITES,
        "tables": ["public.*"],
        "functions": ["public.*"],
        "buckets": ["bucket"],
        "resources": ["order/*", "stock/*"],
    },
    {"callers": ["jobs"], "actions": WRITES, "resources": ["order/*"]},
    {"callers": ["jobs", "team"], "actions": ["read"], "tables": ["public.*"], "buckets": ["bucket"]},
    {
        "callers": ["team"],
        "actions": WRITES,
        "tables": ["public.notes"],
        "functions": ["public.note"],
        "buckets": ["other"],
    },
    {
        "callers": ["root"],
        "actions": [*WRITES, "lock", "barrier", "credentials", "epoch", "break", "audit", "administer"],
        "everything": True,
    },
    {
        "callers": ["anonymous"],
        "actions": ["write"],
        "tables": ["public.orders"],
        "buckets": ["bucket"],
        "resources": ["order/*"],
    },
]
SCHEMA = (
    "CREATE TABLE orders (id bigint PRIMARY KEY, amount bigint)",
    "INSERT INTO orders SELECT id, 0 FROM generate_series(1, 9) AS id",
    "CREATE TABLE notes (id bigint PRIMARY KEY)",
    "CREATE TABLE labels (name text PRIMARY KEY)",
    """CREATE FUNCTION pay(id bigint) RETURNS void LANGUAGE sql VOLATILE AS
    'UPDATE public.orders SET amount = amount + 1 WHERE orders.id = $1'""",
    "CREATE FUNCTION note() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT 1'",
)


@dataclass(frozen=True)
class Sides:
    """The same gateway twice: one observes, and one enforces."""

    observing: Stage
    enforcing: Stage


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sides(postgres_server: EmbeddedPostgres) -> AsyncIterator[Sides]:
    async with AsyncExitStack() as stack:
        stages = []
        for mode in ("observe", "enforce"):
            stage = await stack.enter_async_context(
                staged(
                    postgres_server,
                    store(minimum_part_size=1),
                    callers=CALLERS,
                    grants=GRANTS,
                    fencing={"mode": mode},
                    tables=[
                        {"name": "public.orders", "resource": "account/{id}"},
                        {"name": "public.labels", "resource": "label/{name}"},
                    ],
                    objects=[
                        {"match": "bucket/watched/*", "mode": "observe"},
                        {"match": "bucket/strict/*", "mode": "enforce"},
                    ],
                    postgres={"functions": ["public.pay", "public.note"]},
                )
            )
            for statement in SCHEMA:
                await stage.rows(statement)
            async with api(stage, "root") as client:
                while (await client.get("/v1/tables/labels")).status_code != 200:
                    pass
            stages.append(stage)
        yield Sides(*stages)


def api(stage: Stage, name: str | None, **headers: str) -> httpx.AsyncClient:
    key = {} if name is None else {"Authorization": f"Bearer key-of-{name}"}
    return httpx.AsyncClient(base_url=stage.origin, headers={**key, **headers}, timeout=PATIENCE)


def s3(stage: Stage, name: str, token: str | None = TOKEN) -> S3Client:
    return connect(stage.origin, token, access_key=f"ID{name}", secret_key=f"secret-of-{name}")


@dataclass(frozen=True)
class Answer:
    status: int
    text: str
    would_refuse: str


@dataclass(frozen=True)
class WayIn:
    """A write, at a place and under a resource that the shop may not claim. ``send`` returns its answer."""

    name: str
    place: str
    resource: str
    send: Callable[[Stage, str], Awaitable[Answer]]


def by_api(name: str, method: str, path: str, body: Any = None, **headers: str) -> WayIn:
    function = path.startswith("rpc/")
    named = {each.replace("_", "-"): value for each, value in headers.items()}

    async def send(stage: Stage, caller: str) -> Answer:
        async with api(stage, caller, **{"fencing-token": TOKEN, **named}) as client:
            target = "/v1/transaction" if path == "transaction" else f"/v1/tables/{path}"
            answer = await client.request(method, target, json=body)
        return Answer(answer.status_code, answer.text, answer.headers.get("fencing-would-refuse", ""))

    return WayIn(name, "function public.pay" if function else "table public.orders", "account/5", send)


def by_s3(name: str, operation: str, key: str = "k/a", **arguments: Any) -> WayIn:
    async def send(stage: Stage, caller: str) -> Answer:
        try:
            answer = await call(getattr(s3(stage, caller), operation), Key=key, **arguments)
        except Exception as error:  # noqa: BLE001 - boto3 makes its classes at run time
            return refusal(error)
        return accepted(answer)

    return WayIn(name, f"object bucket/{key}", f"s3/bucket/{key}", send)


def accepted(answer: Any) -> Answer:
    met = answer["ResponseMetadata"]
    return Answer(
        met["HTTPStatusCode"], str(answer.get("Errors", "")), met["HTTPHeaders"].get("fencing-would-refuse", "")
    )


def refusal(error: Any) -> Answer:
    return Answer(error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Message"], "")


async def delete_many(stage: Stage, caller: str) -> Answer:
    try:
        answer = await call(s3(stage, caller).delete_objects, Delete={"Objects": [{"Key": "k/a"}]})
    except Exception as error:  # noqa: BLE001 - likewise
        return refusal(error)
    told = accepted(answer)
    return Answer(403, told.text, "") if answer.get("Errors") else told


async def upload(stage: Stage, caller: str) -> Answer:
    try:
        completion = await opened(s3(stage, caller), "k/a", [b"part"])
        return accepted(await call(s3(stage, caller).complete_multipart_upload, **completion))
    except Exception as error:  # noqa: BLE001 - likewise
        return refusal(error)


async def form(stage: Stage, caller: str) -> Answer:
    fields = {"x-amz-meta-fencing-token": TOKEN}
    signed = s3(stage, caller).generate_presigned_post(
        Bucket="bucket", Key="k/a", Fields=dict(fields), Conditions=[fields]
    )
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        answer = await client.post(signed["url"], data=signed["fields"], files={"file": ("a", uuid4().hex.encode())})
    return Answer(answer.status_code, answer.text, answer.headers.get("fencing-would-refuse", ""))


OBJECT = ("object bucket/k/a", "s3/bucket/k/a")
LARGE = bytes(9 * 1024 * 1024)
WAYS = [
    by_api("insert", "POST", "orders", {"id": 5, "amount": 1}, prefer="resolution=merge-duplicates"),
    by_api("update", "PATCH", "orders?id=eq.5", {"amount": 2}),
    by_api("update that shows rows", "PATCH", "orders?id=eq.5", {"amount": 3}, prefer="return=representation"),
    by_api("upsert", "PUT", "orders?id=eq.5", {"id": 5, "amount": 4}),
    by_api("delete", "DELETE", "orders?id=eq.5"),
    by_api(
        "list",
        "POST",
        "transaction",
        {"writes": [{"method": "PATCH", "table": "orders", "query": "id=eq.5", "body": {"amount": 6}, "token": TOKEN}]},
    ),
    by_api("named by the writer", "PATCH", "orders?id=eq.5", {"amount": 7}, fencing_resource="account/5"),
    by_api("a token for each resource", "PATCH", "orders?id=eq.5", {"amount": 8}, fencing_token=f"account/5={TOKEN}"),
    by_api("function", "POST", "rpc/pay", {"id": 5}, fencing_resource="account/5"),
    by_s3("put", "put_object", Body=b"x"),
    by_s3("put of a large body", "put_object", Body=LARGE),
    by_s3("copy", "copy_object", CopySource="bucket/k/a", MetadataDirective="REPLACE"),
    by_s3("tags", "put_object_tagging", Tagging={"TagSet": [{"Key": "a", "Value": "b"}]}),
    by_s3("delete of an object", "delete_object"),
    WayIn("form", *OBJECT, form),
    WayIn("delete of many", *OBJECT, delete_many),
    WayIn("upload", *OBJECT, upload),
]
ways_in = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)


async def prepared(stage: Stage) -> tuple[object, int]:
    """Make the row and the object that the ways change. Return what ``changes`` compares."""
    await stage.rows("INSERT INTO orders VALUES (5, 0) ON CONFLICT (id) DO UPDATE SET amount = 0")
    stage.double.put("bucket", "k/a", b"before")
    return await stage.rows("SELECT * FROM orders ORDER BY id"), stage.double.sequence


async def changes(stage: Stage, before: tuple[object, int]) -> bool:
    """Return whether anything has been written since."""
    return await stage.rows("SELECT * FROM orders ORDER BY id") != before[0] or bool(stage.applied(before[1]))


async def entries(stage: Stage, caller: str) -> list[dict[str, Any]]:
    async with api(stage, "root") as client:
        answer = await client.get("/v1/rejections", params={"caller": caller, "limit": 500})
    found: list[dict[str, Any]] = answer.json()["rejections"]
    return found


async def fence(stage: Stage, resource: str) -> object:
    async with api(stage, "root") as client:
        return (await client.get(f"/v1/fences/{resource}")).json()["token"]


@ways_in
async def test_a_missing_grant_for_the_resource_passes_and_is_on_record(sides: Sides, way: WayIn) -> None:
    stage = sides.observing
    before, known = await prepared(stage), len(await entries(stage, "shop"))
    answer = await way.send(stage, "shop")
    assert answer.status < 300, answer
    assert await changes(stage, before)
    noted = await entries(stage, "shop")
    newest = noted[: len(noted) - known]
    assert [(one["reason"], one["enforced"], one["resource"]) for one in newest] == [("denied", False, way.resource)]
    action = "call" if way.place.startswith("function") else "write"
    assert newest[0]["missing"] == {"action": action, "on": f"resource {way.resource} at {way.place}"}
    if way.name not in ("list", "delete of many"):
        assert answer.would_refuse == "denied"
    assert await fence(stage, way.resource) is None, "a token without its grant raises no fence"


async def test_a_write_without_a_token_has_both_on_record(sides: Sides) -> None:
    """So an operator sees at once all that enforcement will ask for."""
    stage = sides.observing
    await prepared(stage)

    async def by_api() -> int:
        async with api(stage, "shop") as client:
            return (await client.patch("/v1/tables/orders?id=eq.5", json={"amount": 5})).status_code

    async def by_s3() -> int:
        return (await outcome(s3(stage, "shop", None).put_object, Key="k/a", Body=b"y"))[0]

    for send, status in ((by_api, 204), (by_s3, 200)):
        known = len(await entries(stage, "shop"))
        assert await send() == status
        noted = await entries(stage, "shop")
        found = sorted((one["reason"], one["enforced"]) for one in noted[: len(noted) - known])
        assert found == [("denied", False), ("token-required", False)]


@ways_in
@pytest.mark.parametrize("caller", ["jobs", "team"])
async def test_observe_mode_opens_no_place(sides: Sides, way: WayIn, caller: str) -> None:
    """A grant of resources alone would open all places, and one at other places lends nothing here."""
    for stage in (sides.observing, sides.enforcing):
        before = await prepared(stage)
        answer = await way.send(stage, caller)
        assert (answer.status, await changes(stage, before)) == (403, False), answer
        assert f"lacks the grant {'call' if 'function' in way.place else 'write'} for " in answer.text, answer
        assert "[[grants]] number " in answer.text, answer


@ways_in
async def test_enforced_it_is_denied_with_the_half_that_fails(sides: Sides, way: WayIn) -> None:
    before = await prepared(sides.enforcing)
    answer = await way.send(sides.enforcing, "shop")
    assert (answer.status, await changes(sides.enforcing, before)) == (403, False), answer
    assert f"for resource {way.resource} at {way.place}." in answer.text
    assert f"[[grants]] number 1 covers {way.place}, but only under order/*, stock/*." in answer.text


async def test_a_write_whose_resource_cannot_be_told_passes(sides: Sides) -> None:
    """Enforcement would refuse it before it comes to grants, so no grant is missing on record."""
    stage, long = sides.observing, "n" * 600
    await prepared(stage)
    for target, body, reason in (
        ("orders?amount=eq.0&id=gt.0", {"amount": 0}, "resource-underivable"),
        ("orders?id=eq.5", {"amount": 1}, "resource-mismatch"),
        ("rpc/pay", {"id": 5}, "resource-underivable"),
        ("labels", {"name": long}, "resource-malformed"),
    ):
        async with api(stage, "shop", **{"Fencing-Token": TOKEN}) as client:
            named = {"Fencing-Resource": "order/5"} if reason == "resource-mismatch" else {}
            method = "PATCH" if target.startswith("orders") else "POST"
            answer = await client.request(method, f"/v1/tables/{target}", json=body, headers=named)
        assert answer.status_code < 300, answer.text
        assert (answer.headers["fencing-would-refuse"], (await entries(stage, "shop"))[0]["reason"]) == (reason, reason)
    assert (await stage.rows("SELECT length(name) FROM labels"))[0]["length"] == 600


async def test_an_object_whose_key_is_too_long_for_a_resource_passes(sides: Sides) -> None:
    """S3 takes keys of 1,024 bytes, and each byte of most scripts has three in a name."""
    key = f"{uuid4()}/{'請求書' * 30}"
    for stage, status in ((sides.observing, 200), (sides.enforcing, 403)):
        assert (await outcome(s3(stage, "shop").put_object, Key=key, Body=b"x"))[0] == status
    assert (await outcome(s3(sides.enforcing, "root").put_object, Key=key, Body=b"x"))[0] == 400
    stage, shop = sides.observing, s3(sides.observing, "shop")
    (entry, *_) = await entries(stage, "shop")
    assert (entry["reason"], entry["enforced"]) == ("resource-malformed", False)
    assert await stage.rows("SELECT FROM fencing.fence WHERE resource = $1", entry["resource"]) == []
    assert stage.body(key) == b"x"
    assert (await call(shop.get_object, Key=key))["ContentLength"] == 1
    completion = await opened(shop, key, [b"part"])
    assert accepted(await call(shop.complete_multipart_upload, **completion)).would_refuse == "resource-malformed"
    assert (await outcome(shop.copy_object, Key=f"{key}2", CopySource={"Bucket": "bucket", "Key": key}))[0] == 200
    assert [(await outcome(shop.delete_object, Key=one))[0] for one in (key, f"{key}2")] == [204, 204]
    assert (stage.body(key), stage.body(f"{key}2")) == (None, None)


async def test_an_object_named_otherwise_passes(sides: Sides) -> None:
    stage = sides.observing
    async with AsyncExitStack() as stack:
        client = s3(stage, "root")
        client.meta.events.register(
            "before-call.s3", lambda params, **_: params["headers"].update({"Fencing-Resource": "order/6"})
        )
        stack.callback(client.close)
        answer = await call(client.put_object, Key="named", Body=b"x")
        assert accepted(answer).would_refuse == "resource-mismatch"
        assert stage.body("named") == b"x"
        assert [await fence(stage, one) for one in ("order/6", "s3/bucket/named")] == [None, None]


async def test_the_mode_of_one_rule_holds_for_its_writes_alone(sides: Sides) -> None:
    for stage in (sides.observing, sides.enforcing):
        writer = s3(stage, "shop")
        assert await outcome(writer.put_object, Key="watched/a", Body=b"x") == (200, "")
        assert (await entries(stage, "shop"))[0]["missing"]["on"] == (
            "resource s3/bucket/watched/a at object bucket/watched/a"
        )
        assert await outcome(writer.put_object, Key="strict/a", Body=b"x") == (403, "AccessDenied")
        assert (await entries(stage, "shop"))[0]["enforced"] is True
        # Of a list, each key has its own.
        both = {"Objects": [{"Key": "watched/a"}, {"Key": "strict/a"}]}
        answer = await call(writer.delete_objects, Delete=both)
        assert [one["Key"] for one in answer["Deleted"]] == ["watched/a"]
        assert [(one["Key"], one["Code"]) for one in answer["Errors"]] == [("strict/a", "AccessDenied")]


async def test_an_answer_that_is_kept_comes_again(sides: Sides) -> None:
    stage = sides.observing
    before = await prepared(stage)
    async with api(stage, "shop", **{"Fencing-Token": TOKEN, "Idempotency-Key": uuid4().hex}) as client:
        for again in (False, True):
            answer = await client.patch("/v1/tables/orders?id=eq.5", json={"amount": 9})
            assert (answer.status_code, "idempotency-replayed" in answer.headers) == (204, again), answer.headers
    assert await changes(stage, before)
    assert await fence(stage, "account/5") is None


async def test_one_covered_resource_is_claimed_and_the_other_is_not(sides: Sides) -> None:
    """A write may concern several resources."""
    stage = sides.observing
    await prepared(stage)
    tokens = f"account/5={TOKEN}, order/7=7"
    async with api(stage, "shop", **{"Fencing-Token": tokens}) as client:
        answer = await client.post("/v1/tables/rpc/pay", json={"id": 5})
    assert (answer.status_code, answer.headers["fencing-would-refuse"]) == (204, "denied"), answer.text
    assert answer.headers["fencing-token"] == "order/7=7"
    assert [await fence(stage, one) for one in ("order/7", "account/5")] == ["7", None]


async def test_strangers_stay_denied(sides: Sides) -> None:
    """A grant names the place for them, too. The patterns of their grants are not told."""
    stage = sides.observing
    before = await prepared(stage)
    async with api(stage, None, **{"Fencing-Token": TOKEN}) as client:
        answer = await client.patch("/v1/tables/orders?id=eq.5", json={"amount": 1})
        assert (answer.status_code, "number" in answer.text) == (401, False), answer.text
        answer = await client.put("/bucket/k/a", content=b"x")
        assert (answer.status_code, "number" in answer.text) == (403, False), answer.text
    assert not await changes(stage, before)


async def test_fenced_credentials_stay_within_their_scope(sides: Sides) -> None:
    """Their owner limits them to one resource, for a program that it trusts with no more."""
    stage = sides.observing
    own = await stage.issued("key-of-root", resource="order/8", token="5")
    status, code, message = await refused(connect(stage.origin, None, **own).put_object, Key="k/a", Body=b"x")
    assert (status, code) == (403, "AccessDenied")
    assert message == "Access Denied. These fenced credentials are for order/8, not for s3/bucket/k/a."


async def test_the_page_shows_the_missing_grant(sides: Sides) -> None:
    stage = sides.observing
    await prepared(stage)
    assert (await outcome(s3(stage, "shop").put_object, Key="k/a", Body=b"z"))[0] == 200
    newest = (await entries(stage, "shop"))[0]["id"]
    async with api(stage, "shop", **{"Fencing-Token": TOKEN}) as client:
        assert (await client.post("/v1/tables/notes", json={"id": 1})).status_code == 201
        assert (await client.patch("/v1/tables/orders?id=eq.5", json={"amount": 1})).status_code == 204
    async with api(stage, None) as client:
        await client.post("/ui/login", data={"api_key": "key-of-root"}, headers={"Origin": stage.origin})
        entry = (await client.get(f"/ui/rejections/{newest}")).text
        overview = (await client.get("/ui/")).text
        observe = (await client.get("/ui/observe")).text
    assert "Write that passed, and would be refused, to" in entry
    assert "lacks the grant write for resource s3/bucket/k/a at object bucket/k/a." in entry
    assert "nothing was done" not in entry
    assert "<td>write for " in overview.partition("Denied, by caller")[2].partition("</table>")[0]
    row = overview.partition('id="rules"')[2].partition("public.notes")[2].partition("</tr>")[0]
    assert ">1<" in row, "it counts as a write that its rule observed"
    assert "no grant" in observe
