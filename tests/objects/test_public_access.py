"""Unsigned clients read what is granted to them, as at S3; no ACL or policy opens the store past the gateway."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import astuple
from typing import Any
from uuid import uuid4

import boto3
import httpx
import pytest
import pytest_asyncio
from botocore import UNSIGNED
from botocore.config import Config
from mypy_boto3_s3 import S3Client

from gateway.demo.embedded import EmbeddedPostgres
from gateway.errors import StoreError
from gateway.fencing.decision import Enforcement
from gateway.objects import reads
from gateway.objects.s3.access_control import UNNAMED, AclRight, acl_of_document, acl_of_headers, policy_rights
from gateway.observe.events import RefusalCounted
from gateway.record import refusals
from tests.doubles.s3 import S3Double
from tests.doubles.s3.amendments import canned_acl
from tests.doubles.s3.wire import Receive, Scope, Send
from tests.objects import raw
from tests.objects.clients import body_of, call, connect, outcome, refused
from tests.objects.object_gateway import RecordingDouble, Stage, staged
from tests.objects.test_forms import BOUNDARY, TOKEN, Form, code, post, signed
from tests.running import GRANTS
from tests.tiers import first
from tests.waiting import PATIENCE

over_http = pytest.mark.asyncio(loop_scope="module")

DENIED = (403, "AccessDenied")


PAGE = "https://app.example"
"""The origin of a page that the bucket's CORS rules let in."""


CALLERS = [
    {"name": name, "api_key": f"key-of-{name}", "access_key_id": f"ID{name}", "secret_access_key": f"secret-of-{name}",
     "groups": groups}
    for name, groups in (("root", ["admins"]), ("clerk", []), ("stranger", []), ("warden", []))
]  # fmt: skip


CONFIGURED = [
    GRANTS[0],
    {"callers": ["clerk"], "actions": ["read", "write"], "buckets": ["private"], "resources": ["s3/private/**"]},
    {"callers": ["stranger"], "actions": ["read"], "tables": ["public.orders"]},
    {"callers": ["warden"], "actions": ["administer"], "buckets": ["site", "private", "mixed"]},
    {"callers": ["anonymous"], "actions": ["read"], "buckets": ["site", "mixed/public/**"]},
    {"callers": ["anonymous"], "actions": ["write"], "buckets": ["inbox"], "resources": ["s3/inbox/**"]},
]


class PublicDouble(RecordingDouble):
    """A store with ACLs and policies of buckets, which it keeps as they come, and with CORS rules for one page."""

    def __init__(self) -> None:
        super().__init__(buckets=["site", "mixed", "private", "inbox"])
        self.kept: dict[str, bytes] = {}
        self.mute = False
        self.owners_told = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers, subresource = dict(scope["headers"]), scope["query_string"].partition(b"=")[0]
        of_a_bucket = scope["path"].count("/") == 1 and subresource in (b"acl", b"policy")
        given = headers.get(b"origin")
        allowed = [(b"access-control-allow-origin", given or b"")] if given == PAGE.encode() else []
        if scope["method"] == "OPTIONS":
            await asyncio.sleep(3 if self.mute else 0)
            await answer(send, 200 if allowed else 403, b"", [*allowed, (b"vary", b"Origin")])
        elif of_a_bucket and scope["method"] == "PUT":
            message = await receive()
            assert not message.get("more_body")
            self.kept[f"{scope['path']}?{subresource.decode()}"] = message["body"]
            await answer(send, 200, b"")
        elif of_a_bucket:
            self.owners_told += 1
            await answer(send, 200, canned_acl("private"))
        else:
            await super().__call__(scope, receive, send)


async def answer(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(postgres_server: EmbeddedPostgres) -> AsyncIterator[Stage]:
    """Two buckets have public keys, one takes unsigned writes, and one is private."""
    async with staged(postgres_server, PublicDouble(), callers=CALLERS, grants=CONFIGURED) as one:
        for bucket, key in (("site", "page"), ("mixed", "public/page"), ("mixed", "secret"), ("private", "secret")):
            one.double.put(bucket, key, b"0123456789")
        yield one


def double(stage: Stage) -> PublicDouble:
    assert isinstance(stage.double, PublicDouble)
    return stage.double


def client_of(stage: Stage, name: str, token: str | None = "1") -> S3Client:
    return connect(stage.origin, token, access_key=f"ID{name}", secret_key=f"secret-of-{name}")


def unsigned(stage: Stage) -> S3Client:
    config = Config(signature_version=UNSIGNED, s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
    session = boto3.Session(region_name="us-east-1")
    return session.client("s3", endpoint_url=stage.origin, config=config)


async def ask(stage: Stage, method: str, target: str, **headers: str) -> httpx.Response:
    """Send an unsigned request, as a browser or a program would."""
    async with httpx.AsyncClient(base_url=stage.origin, timeout=PATIENCE) as client:
        return await client.request(method, target, headers={k.replace("_", "-"): v for k, v in headers.items()})


@over_http
class TestUnsignedReads:
    async def test_boto3_reads_and_lists_what_is_granted(self, shared: Stage) -> None:
        s3 = unsigned(shared)
        assert await body_of(s3, "page", "site") == b"0123456789"
        assert (await call(s3.head_object, Bucket="site", Key="page"))["ContentLength"] == 10
        assert (await call(s3.head_bucket, Bucket="site"))["ResponseMetadata"]["HTTPStatusCode"] == 200
        for listing in (s3.list_objects, s3.list_objects_v2):
            assert [one["Key"] for one in (await call(listing, Bucket="site"))["Contents"]] == ["page"]
            found = await call(listing, Bucket="mixed", Prefix="public/")
            assert [one["Key"] for one in found["Contents"]] == ["public/page"]

    @pytest.mark.parametrize(
        ("bucket", "key"), [("mixed", "secret"), ("mixed", "absent"), ("private", "secret"), ("no-such-bucket", "k")]
    )
    async def test_all_else_is_denied_and_the_store_is_not_asked(self, shared: Stage, bucket: str, key: str) -> None:
        s3 = unsigned(shared)
        since = len(double(shared).asked)
        assert await outcome(s3.get_object, Bucket=bucket, Key=key) == DENIED
        assert await outcome(s3.head_object, Bucket=bucket, Key=key) == (403, "403")
        assert await outcome(s3.list_objects_v2, Bucket=bucket) == DENIED
        assert double(shared).asked[since:] == []

    @pytest.mark.parametrize(
        "operation",
        ["PUT x", "PUT x?partNumber=1&uploadId=u", "POST x?uploadId=u", "POST ?delete", "PUT x?tagging", "PUT ?policy"],
    )
    async def test_no_operation_waits_for_the_body_of_a_caller_without_a_grant(
        self, shared: Stage, operation: str
    ) -> None:
        """The head announces a body of which no byte comes."""
        method, target = operation.split(" ")
        target = f"/private/{target}".replace("/?", "?")
        named = [("content-length", "100000000"), ("fencing-token", "1")]
        secret = "secret-of-stranger"
        signed_head = raw.head(shared.origin, method, target, named, access_key="IDstranger", secret=secret)
        for head in (signed_head, raw.lines(method, target, [("host", "gateway"), *named])):
            reply = await raw.ask(shared.origin, head)
            assert (reply.status, reply.code) == DENIED

    async def test_the_headers_of_the_answer_are_not_the_strangers_choice(self, shared: Stage) -> None:
        """A link to a public object must not turn it into a page of HTML. Signed requests may choose, as at S3."""
        for name in ("content-type", "content-disposition", "cache-control", "expires"):
            for method in ("GET", "HEAD"):
                refusal = await ask(shared, method, f"/site/page?response-{name}=text/html")
                assert refusal.status_code == 400
                assert (b"<Code>InvalidRequest</Code>" in refusal.content) == (method == "GET")
        url = client_of(shared, "root").generate_presigned_url(
            "get_object", {"Bucket": "site", "Key": "page", "ResponseContentType": "text/css"}
        )
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            assert (await client.get(url)).headers["content-type"] == "text/css"


@over_http
class TestLinks:
    async def test_a_link_that_is_followed_again_is_a_request_of_its_own(self, shared: Stage) -> None:
        """Its head is known, and nothing else: neither the object nor what another head asks for."""
        owner = client_of(shared, "root")
        link = owner.generate_presigned_url("get_object", {"Bucket": "private", "Key": "link"})
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            for body in (b"first", b"second"):
                shared.double.put("private", "link", body)
                for _ in range(3):
                    assert (await client.get(link)).content == body
            assert (await client.get(link, headers={"range": "bytes=0-2"})).content == b"sec"
            assert (await client.get(link, headers={"if-none-match": "*"})).status_code == 304
            assert (await client.get(f"{link}0")).status_code == 403
            assert (await client.get(link.replace("/private/link", "/private/other"))).status_code == 403
            assert (await client.head(link)).status_code == 403
            assert (await client.get(link)).content == b"second"


@over_http
class TestBrowsers:
    async def test_a_page_that_the_rules_let_in_reads_answers_and_refusals(
        self, shared: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without CORS headers a script learns nothing of a refusal, not even its status."""
        monkeypatch.setattr(reads, "_CORS_TIMEOUT", PATIENCE)
        for method, target, status in (
            ("GET", "/mixed/secret", 403),
            ("PUT", "/site/page", 403),
            ("GET", "/site/page?response-content-type=text/html", 400),
        ):
            refusal = await ask(shared, method, target, Origin=PAGE)
            assert refusal.status_code == status
            assert (refusal.headers["access-control-allow-origin"], refusal.headers["vary"]) == (PAGE, "Origin")
            foreign = await ask(shared, method, target, Origin="https://evil.example")
            assert (foreign.status_code, foreign.headers.get("access-control-allow-origin")) == (status, None)
        preflight = await ask(shared, "OPTIONS", "/site/page", Origin=PAGE, Access_Control_Request_Method="GET")
        assert preflight.headers["access-control-allow-origin"] == PAGE

    async def test_a_store_without_an_answer_does_not_hold_a_refusal_up(self, shared: Stage) -> None:
        double(shared).mute = True
        try:
            refusal = await ask(shared, "GET", "/private/secret", Origin=PAGE)
        finally:
            double(shared).mute = False
        assert (refusal.status_code, refusal.headers.get("access-control-allow-origin")) == (403, None)


@over_http
class TestUnsignedWrites:
    async def test_they_need_a_grant_and_a_token(self, shared: Stage, key: str) -> None:
        assert (await ask(shared, "PUT", f"/inbox/{key}")).status_code == 428
        assert (await ask(shared, "PUT", f"/inbox/{key}", Fencing_Token="5")).status_code == 200
        assert (await ask(shared, "PUT", f"/inbox/{key}", Fencing_Token="4")).status_code == 412
        assert (await ask(shared, "PUT", f"/site/{key}", Fencing_Token="5")).status_code == 403
        assert (await ask(shared, "GET", f"/inbox/{key}")).status_code == 403

    async def test_a_form_without_a_policy_does_too(self, shared: Stage, key: str) -> None:
        def form(bucket: str, **fields: str) -> Form:
            given = {name.replace("_", "-"): value for name, value in fields.items()}
            return Form(f"{shared.origin}/{bucket}", {"key": key, **given})

        token = {TOKEN: "5"}
        assert code(await post(form("inbox"))) == (428, "FencingTokenRequired")
        assert (await post(form("inbox", **token))).status_code == 204
        assert shared.double.objects("inbox")[key].content.body == b"content"
        assert code(await post(form("inbox", **{TOKEN: "4"}))) == (412, "StaleFencingToken")
        assert code(await post(form("site", **token))) == DENIED
        assert code(await post(form("inbox", acl="public-read-write", **token))) == DENIED
        assert code(await post(form("inbox", x_amz_signature="0", **token))) == (400, "InvalidArgument")

    async def test_a_page_of_any_site_posts_no_form(self, shared: Stage, key: str) -> None:
        """A browser sends a form for every page, without asking for the rules of the bucket."""
        form = Form(f"{shared.origin}/inbox", {"key": key, TOKEN: "5"})
        assert code(await post(form, headers={"Origin": "https://evil.example"})) == DENIED
        assert key not in shared.double.objects("inbox")
        allowed = signed(shared.origin, key, bucket="private", access_key="IDclerk", secret_key="secret-of-clerk")
        assert (await post(allowed, headers={"Origin": "https://evil.example"})).status_code == 204
        multiple = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", "Origin": "https://evil.example"}
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            assert (await client.post(f"{shared.origin}/inbox?delete", headers=multiple)).status_code == 403


async def test_writes_that_pass_do_not_fill_the_record(
    postgres_server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond a rate they pass without an entry, and are counted. A known caller has all its entries."""
    monkeypatch.setattr(refusals, "BURST", 2)
    monkeypatch.setattr(refusals, "A_SECOND", 0.0)
    rules = [{"match": "inbox/**", "mode": Enforcement.OBSERVE}]
    async with staged(postgres_server, PublicDouble(), callers=CALLERS, grants=CONFIGURED, objects=rules) as stage:
        for _ in range(5):
            answer = await ask(stage, "PUT", "/inbox/k")
            assert (answer.status_code, answer.headers["fencing-would-refuse"]) == (200, "token-required")
        for _ in range(3):
            await call(client_of(stage, "root", token=None).put_object, Bucket="inbox", Key="k", Body=b"x")
        found = await stage.rows("SELECT caller FROM fencing.record WHERE kind = 'rejection' ORDER BY caller")
        assert [row["caller"] for row in found] == ["anonymous"] * 2 + ["root"] * 3
        counted = [event for event in stage.events if isinstance(event, RefusalCounted)]
        assert [(one.plane, one.refusal.reason, one.refusal.enforced) for one in counted] == [
            ("objects", "token-required", False)
        ] * 3


@over_http
class TestListBuckets:
    async def test_it_shows_the_buckets_that_are_granted(self, shared: Stage) -> None:
        seen = {
            name: [one["Name"] for one in (await call(s3.list_buckets))["Buckets"]]
            for name, s3 in (
                ("root", client_of(shared, "root")),
                ("clerk", client_of(shared, "clerk")),
                ("warden", client_of(shared, "warden")),
                ("anonymous", unsigned(shared)),
            )
        }
        assert seen == {
            "root": ["inbox", "mixed", "private", "site"],
            "clerk": ["private"],
            "warden": ["mixed", "private", "site"],
            "anonymous": ["inbox", "mixed", "site"],
        }
        assert await outcome(client_of(shared, "stranger").list_buckets) == DENIED


GROUP = {"Type": "Group", "URI": "http://acs.amazonaws.com/groups/global/AllUsers"}


OWNER = {"Type": "CanonicalUser", "ID": "double"}


OTHER = {"Type": "CanonicalUser", "ID": "other"}


def document(*grants: tuple[dict[str, str], str]) -> dict[str, Any]:
    return {
        "Owner": {"ID": "double"},
        "Grants": [{"Grantee": grantee, "Permission": permission} for grantee, permission in grants],
    }


LETS_OTHERS_WRITE: list[dict[str, Any]] = [
    {"ACL": "public-read-write"},
    {"GrantFullControl": 'id="other"'},
]


@over_http
class TestAclsOfObjects:
    """The clerk may write the bucket ``private``, of which nothing is public, and root the public ones, too."""

    @pytest.mark.parametrize("acl", first(LETS_OTHERS_WRITE), ids=str)
    @pytest.mark.parametrize("bucket", ["private", "site"])
    async def test_none_lets_others_write(self, shared: Stage, key: str, bucket: str, acl: dict[str, str]) -> None:
        s3, place = client_of(shared, "root"), {"Bucket": bucket, "Key": key}
        await call(s3.put_object, Bucket=bucket, Key=f"{key}-source")
        since = shared.double.sequence
        status, code, message = await refused(s3.put_object, **place, Body=b"x", **acl)
        assert (status, code) == DENIED
        assert "let others write at the store" in message
        for operation, more in (
            (s3.create_multipart_upload, {}),
            (s3.copy_object, {"CopySource": f"{bucket}/{key}-source"}),
            (s3.put_object_acl, {"Key": f"{key}-source"}),
        ):
            assert await outcome(operation, **{**place, **more}, **acl) == DENIED
        assert shared.applied(since) == []
        assert not shared.double.store.bucket(bucket).uploads.running(now=shared.double.service.now())

    @pytest.mark.parametrize("acl", first(["public-read", "authenticated-read"]))
    async def test_one_for_readers_needs_a_grant_for_all(self, shared: Stage, key: str, acl: str) -> None:
        s3 = client_of(shared, "root")
        for bucket, expected in (("private", DENIED), ("mixed", DENIED), ("mixed/public", (200, ""))):
            where = {"Bucket": bucket.partition("/")[0], "Key": f"{bucket.partition('/')[2] or 'x'}/{key}"}
            assert await outcome(s3.put_object, **where, ACL=acl) == expected
        assert await outcome(s3.put_object_acl, **where, ACL=acl) == (200, "")

    async def test_others_who_are_named_count_like_all(self, shared: Stage, key: str) -> None:
        """A caller that may only write must not show objects to itself at the store, where it may be a user, too."""
        s3 = client_of(shared, "root")
        for operation in (s3.put_object, s3.put_object_acl):
            assert await outcome(operation, Bucket="private", Key="secret", GrantRead='id="other"') == DENIED

    @pytest.mark.parametrize("acl", first(["private", "bucket-owner-read", "bucket-owner-full-control"]))
    async def test_one_for_the_owner_passes(self, shared: Stage, key: str, acl: str) -> None:
        s3 = client_of(shared, "clerk")
        assert await outcome(s3.put_object, Bucket="private", Key=key, ACL=acl) == (200, "")
        assert await outcome(s3.put_object_acl, Bucket="private", Key=key, ACL=acl) == (200, "")
        assert (await outcome(s3.put_object, Bucket="private", Key=key, ACL="Public-Read-Write"))[0] == 400

    async def test_a_write_is_authorised_once(self, shared: Stage, key: str) -> None:
        """The store is asked for the owner whom the ACL names when the caller is authorised."""
        store = double(shared)
        told = store.owners_told
        given = f'id="{OWNER["ID"]}"'
        s3 = client_of(shared, "clerk")
        assert await outcome(s3.put_object, Bucket="private", Key=key, GrantFullControl=given) == (200, "")
        assert store.owners_told == told + 1

    async def test_an_acl_comes_one_way(self, shared: Stage, key: str) -> None:
        s3 = client_of(shared, "root")
        await call(s3.put_object, Bucket="private", Key=key)
        canned, given = {"ACL": "private"}, {"GrantRead": f'id="{OWNER["ID"]}"'}
        own = document((OWNER, "FULL_CONTROL"))
        for operation, place in (
            (s3.put_object_acl, {"Bucket": "private", "Key": key}),
            (s3.put_bucket_acl, {"Bucket": "private"}),
        ):
            assert await outcome(operation, **place, **canned, **given) == (400, "InvalidRequest")
            for headers in (canned, given):
                refused = await outcome(operation, **place, **headers, AccessControlPolicy=own)
                assert refused == (400, "UnexpectedContent")
        assert await outcome(s3.put_object, Bucket="private", Key=key, **canned, **given) == (400, "InvalidRequest")

    async def test_a_document_is_read(self, shared: Stage, key: str) -> None:
        s3 = client_of(shared, "root")
        for bucket, name in (("private", key), ("mixed", f"public/{key}")):
            await call(s3.put_object, Bucket=bucket, Key=name)
        own = (OWNER, "FULL_CONTROL")
        for bucket, name, acl, expected in (
            ("private", key, document(own), (200, "")),
            ("private", key, document(own, (GROUP, "READ")), DENIED),
            ("mixed", f"public/{key}", document(own, (GROUP, "READ")), (200, "")),
            ("mixed", f"public/{key}", document(own, (OTHER, "FULL_CONTROL")), DENIED),
        ):
            assert await outcome(s3.put_object_acl, Bucket=bucket, Key=name, AccessControlPolicy=acl) == expected, acl


MINIO = (
    "<AccessControlPolicy><Owner><ID></ID><DisplayName></DisplayName></Owner><AccessControlList>"
    '<Grant><Grantee xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser">'
    "<Type>CanonicalUser</Type></Grantee><Permission>FULL_CONTROL</Permission></Grant>"
    "</AccessControlList></AccessControlPolicy>"
)
"""Its answer to each GET ?acl. It takes the same document, and does nothing."""


class NamelessDouble(S3Double):
    """A store that names its users in no ACL."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET" and scope["query_string"].startswith(b"acl"):
            await answer(send, 200, MINIO.encode())
        else:
            await super().__call__(scope, receive, send)


GRANT = (
    "<Grant><Grantee><URI>http://acs.amazonaws.com/groups/global/AllUsers</URI></Grantee><Permission>{}</Permission>"
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (MINIO, 200),
        (MINIO.replace("<Type>CanonicalUser</Type>", ""), 200),  # as boto3 writes it
        (MINIO.replace("</AccessControlList>", GRANT.format("READ") + "</Grant></AccessControlList>"), 403),
        (MINIO.replace("</AccessControlList>", GRANT.format("WRITE") + "</Grant></AccessControlList>"), 403),
        (MINIO.replace("<Type>CanonicalUser</Type>", "<ID></ID>"), 403),
        (MINIO.replace('xsi:type="CanonicalUser"><Type>CanonicalUser</Type>', ">"), 403),
        (MINIO.replace("<Type>CanonicalUser</Type>", "<ID>somebody</ID>"), 403),
        (MINIO.replace("<Type>CanonicalUser</Type>", "<Type>CanonicalUser</Type><URI>all</URI>"), 400),
        (MINIO.replace("<Type>CanonicalUser</Type>", "<Type>Group</Type>"), 400),
        (MINIO.replace('xsi:type="CanonicalUser"', 'xsi:type="Group"'), 400),
    ],
)
async def test_the_acl_that_a_store_shows_is_taken_back(
    postgres_server: EmbeddedPostgres, document: str, expected: int
) -> None:
    """s3cmd puts it back after each copy. It is a fenced write, as each change of an ACL."""
    async with staged(postgres_server, NamelessDouble(buckets=["bucket"])) as stage:
        s3 = connect(stage.origin, "33")
        await call(s3.put_object, Key="k", Body=b"x")
        since = len(stage.double.requests)
        status = await _put_acl(s3, document)
        assert status == expected
        sent = [each.operation for each in stage.written(since)]
        assert sent == (["PutObjectAcl"] if expected == 200 else [])
        assert await _put_acl(connect(stage.origin, "34"), MINIO) == 200
        assert await _put_acl(s3, MINIO) == 412, "an older holder's is refused"


@over_http
async def test_a_user_without_a_name_is_no_owner_elsewhere(shared: Stage, key: str) -> None:
    s3 = client_of(shared, "root")
    await call(s3.put_object, Bucket="private", Key=key)
    assert await _put_acl(s3, MINIO, "private", key) == 403


async def _put_acl(s3: S3Client, document: str, bucket: str = "bucket", key: str = "k") -> int:
    """Put an ACL as it is: boto3 would write another document."""

    def insert(params: dict[str, Any], **_: Any) -> None:
        params["body"] = document.encode()
        del params["headers"]["x-amz-acl"]

    s3.meta.events.register("before-call.s3.PutObjectAcl", insert)
    try:
        status, _ = await outcome(s3.put_object_acl, Bucket=bucket, Key=key, ACL="private")
    finally:
        s3.meta.events.unregister("before-call.s3.PutObjectAcl", insert)
    return status


@over_http
class TestOfBuckets:
    @pytest.mark.parametrize("acl", first([*LETS_OTHERS_WRITE, {"ACL": "log-delivery-write"}]), ids=str)
    async def test_no_acl_lets_others_write(self, shared: Stage, acl: dict[str, str]) -> None:
        root = client_of(shared, "root")
        new = f"new-{uuid4().hex[:8]}"
        for bucket, operation in (
            (new, root.create_bucket),
            ("site", root.put_bucket_acl),
            ("site", client_of(shared, "warden").put_bucket_acl),
        ):
            since = len(double(shared).asked)
            assert await outcome(operation, Bucket=bucket, **acl) == DENIED
            assert double(shared).changing(since) == []
        assert new not in shared.double.store.buckets

    async def test_a_public_one_needs_a_grant_for_the_whole_bucket(self, shared: Stage) -> None:
        s3 = client_of(shared, "warden")
        assert await outcome(s3.put_bucket_acl, Bucket="site", ACL="public-read") == (200, "")
        for bucket in ("mixed", "private"):
            assert await outcome(s3.put_bucket_acl, Bucket=bucket, ACL="public-read") == DENIED
            assert await outcome(s3.put_bucket_acl, Bucket=bucket, ACL="private") == (200, "")
            acl = document((OWNER, "FULL_CONTROL"), (GROUP, "READ"))
            assert await outcome(s3.put_bucket_acl, Bucket=bucket, AccessControlPolicy=acl) == DENIED
            named = document((OWNER, "FULL_CONTROL"), (OTHER, "READ"))
            assert await outcome(s3.put_bucket_acl, Bucket=bucket, AccessControlPolicy=named) == (200, "")

    async def test_a_policy_gives_no_right_to_write(self, shared: Stage) -> None:
        account = {"Principal": {"AWS": "1234"}, "Resource": "arn:aws:s3:::mixed/*"}
        for statement, passes in (
            ({"Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::mixed/public/*"}, True),
            ({"Principal": {"AWS": ["*"]}, "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::mixed/*"}, False),
            ({**account, "Action": "s3:GetObject"}, True),
            ({**account, "Action": "s3:PutObject"}, False),
            ({**account, "Effect": "Deny", "Action": "s3:*"}, True),
            ({**account, "Principal": "*", "Action": "s3:BypassGovernanceRetention"}, True),
            ({**account, "Action": ["s3:BypassGovernanceRetention", "s3:DeleteObject"]}, False),
        ):
            policy = json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement}]})
            double(shared).kept.clear()
            done = await outcome(client_of(shared, "warden").put_bucket_policy, Bucket="mixed", Policy=policy)
            assert done == ((200, "") if passes else DENIED), statement
            assert double(shared).kept == ({"/mixed?policy": policy.encode()} if passes else {})


@over_http
async def test_a_restore_writes_no_other_keys(shared: Stage) -> None:
    place = {"S3": {"BucketName": "private", "Prefix": "stolen", "CannedACL": "public-read-write"}}
    request = {"Type": "SELECT", "OutputLocation": place}
    done = await outcome(client_of(shared, "root").restore_object, Bucket="site", Key="page", RestoreRequest=request)
    assert done == (501, "NotImplemented")


# ACLs and policies are read strictly: an ambiguous text is refused, or counts as the wider right.

XSI = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"'


READER = f"<Grant><Grantee {XSI}><ID>me</ID></Grantee><Permission>READ</Permission></Grant>"


def acl_document(grants: str, before: str = "", after: str = "") -> bytes:
    owner = "<Owner><ID>me</ID></Owner>"
    listed = f"<AccessControlList>{grants}</AccessControlList>"
    return f"{before}<AccessControlPolicy>{owner}{listed}{after}</AccessControlPolicy>".encode()


def test_a_grantee_of_many_spaces_stops_nobody() -> None:
    """Two thousand spaces took a regular expression twenty seconds, and a head has room for sixty thousand."""
    began = time.process_time()
    assert acl_of_headers([("x-amz-grant-read", f'id={" " * 2000}"x')]) == [AclRight(None, writes=False)]
    assert acl_of_headers([("x-amz-grant-read", f"{' ' * 2000}id {' ' * 2000}= me")]) == [AclRight("me", writes=False)]
    assert time.process_time() - began < 1


def test_the_grants_of_a_document() -> None:
    grants = (
        READER
        + "<Grant><Grantee><URI>all</URI></Grantee><Permission>READ_ACP</Permission></Grant>"
        + "<Grant><Grantee><ID>me</ID><URI>all</URI></Grantee><Permission>WRITE</Permission></Grant>"
        + "<Grant><Grantee><EmailAddress>a@b</EmailAddress></Grantee><Permission>FULL_CONTROL</Permission></Grant>"
        + "<Grant><Grantee><ID>you</ID></Grantee><Permission> WRITE_ACP </Permission></Grant>"
        + f"<Grant><Grantee {XSI}><Type>CanonicalUser</Type></Grantee><Permission>READ</Permission></Grant>"
    )
    assert acl_of_document(acl_document(grants)) == [
        AclRight("me", writes=False),
        AclRight(None, writes=False),
        AclRight(None, writes=True),
        AclRight(None, writes=True),
        AclRight("you", writes=True),
        AclRight(UNNAMED, writes=False),
    ]
    assert acl_of_document(acl_document("", '<?xml version="1.0" encoding="UTF-8"?>')) == []


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"<AccessControlPolicy/>",
        acl_document(READER, after=f"<AccessControlList>{READER}</AccessControlList>"),
        acl_document(READER, before='<?xml version="1.0" encoding="ISO-8859-1"?>'),
        acl_document(READER, before='<!DOCTYPE a [<!ENTITY w "WRITE">]>'),
        acl_document(READER).decode().encode("utf-16"),
        acl_document(READER.replace("READ", "write")),
        acl_document(READER.replace("</Permission>", "</Permission><Permission>WRITE</Permission>")),
        acl_document(READER.replace("<ID>me</ID>", "<ID>me</ID><ID>you</ID>")),
        acl_document(READER.replace("<ID>me</ID>", "<ID>me<b/></ID>")),
        acl_document(READER.replace("<Grantee", "<X/><Grantee")),
        acl_document("<Grant><Permission>READ</Permission></Grant>"),
        acl_document(READER * 500),
    ],
)
def test_another_document_is_refused(document: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        acl_of_document(document)
    assert (caught.value.s3_code, caught.value.status) == ("MalformedACLError", 400)


@pytest.mark.parametrize(
    ("name", "value", "rights"),
    [
        ("x-amz-acl", "private", []),
        ("x-amz-acl", "aws-exec-read", [AclRight(None, writes=False)]),
        ("x-amz-acl", "public-read-write", [AclRight(None, writes=False), AclRight(None, writes=True)]),
        ("x-amz-grant-read", 'id="me"', [AclRight("me", writes=False)]),
        ("x-amz-grant-read-acp", "id=me, id = you", [AclRight("me", writes=False), AclRight("you", writes=False)]),
        ("x-amz-grant-full-control", 'uri="all"', [AclRight(None, writes=True)]),
        ("x-amz-grant-write-acp", 'id="me"x', [AclRight(None, writes=True)]),
        ("x-amz-grant-something-new", 'id="me"', [AclRight("me", writes=True)]),
    ],
)
def test_the_rights_in_headers(name: str, value: str, rights: list[AclRight]) -> None:
    assert acl_of_headers([(name, value)]) == rights


def statement(**members: Any) -> bytes:
    usual = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::b/*"}
    given = {name: value for name, value in (usual | members).items() if value is not None}
    return json.dumps({"Version": "2012-10-17", "Statement": [given]}).encode()


def test_a_waiver_of_retention_gives_no_right() -> None:
    waiver = "S3:BypassGovernanceRetention"
    assert policy_rights(statement(Action=waiver), "b") == []
    assert policy_rights(statement(Action=[waiver, "s3:GetObject"]), "b") == policy_rights(statement(), "b")
    assert policy_rights(statement(Action=f"{waiver}*"), "b")[0].writes
    assert policy_rights(statement(Action=waiver, NotAction="s3:GetObject"), "b")[0].writes


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, (False, True, (("", True),))),
        ({"Resource": "arn:aws:s3:::b/a/k"}, (False, True, (("a/k", False),))),
        ({"Resource": ["arn:aws:s3:::b/a/*", "arn:aws:s3:::b"]}, (False, True, (("a/", True), None))),
        ({"Resource": "arn:aws:s3:::b/${aws:username}/x"}, (False, True, (("", True),))),
        ({"Resource": "arn:aws:s3:::*/x"}, (False, True, (None,))),
        ({"Principal": {"AWS": ["1", "arn:aws:iam::2:root"]}}, (False, False, (("", True),))),
        ({"Principal": {"AWS": ["1", "*"]}}, (False, True, (("", True),))),
        ({"Principal": {"AWS": "1"}, "NotPrincipal": {"AWS": "2"}}, (False, True, (("", True),))),
        ({"Action": "S3:getobject*"}, (False, True, (("", True),))),
        ({"Action": None, "NotAction": "s3:GetObject"}, (True, True, (("", True),))),
        ({"Resource": None, "NotResource": "arn:aws:s3:::b/a"}, (False, True, (None,))),
        ({"Condition": {"IpAddress": {}}, "Action": "s3:PutObject"}, (True, True, (("", True),))),
    ],
    ids=str,
)
def test_the_rights_of_a_statement(members: dict[str, Any], expected: tuple[bool, bool, Any]) -> None:
    assert [astuple(right) for right in policy_rights(statement(**members), "b")] == [expected]


def test_a_denial_gives_no_right_and_case_does_not_hide_one() -> None:
    assert policy_rights(statement(Effect="Deny", Action="s3:*"), "b") == []
    assert policy_rights(statement(Action="s3:PutObject").lower().replace(b"allow", b"Allow"), "b")[0].writes


NO_PRINCIPALS: list[Any] = [None, "", [], {"AWS": ""}, {"AWS": []}]
NO_RESOURCES: list[Any] = [None, "", [], "b/*", "arn:aws:s3:::other/*", "arn:aws:s3:::/b"]


@pytest.mark.parametrize(
    "policy",
    [
        *(b"", b"[]", b"{nonsense"),
        b'{"Statement": "x"}',
        b'{"Statement": [1]}',
        b'{"Statement": [], "statement": [{"Effect": "Allow"}]}',
        b'{"Statement": [], "Other": 1}',
        statement(Other=1),
        statement(Action={"a": 1}),
        statement(Action=[["s3:PutObject"]]),
        statement(Principal={"AWS": {"a": "*"}}),
        statement(Principal=5),
        # S3 judges a policy before it asks for rights: these are no denials.
        *(statement(Effect=effect, Action="s3:PutObject") for effect in (None, "deny", "Permit")),
        *(statement(Action=action) for action in (None, "", [], "PutObject", ["s3:GetObject", "ec2:Run"])),
        *(statement(Principal=nobody) for nobody in (None, "", list[str]())),
        *(statement(Principal={"AWS": nobody}) for nobody in ("", list[str]())),
        *(statement(Resource=name) for name in ("", "b/*", "arn:aws:s3:::other/*", "arn:aws:s3:::/b")),
        *(statement(Resource=nothing) for nothing in (None, list[str]())),
        b"[" * 100_000,
        statement(Sid="x" * 30_000),
    ],
)
def test_another_policy_is_refused(policy: bytes) -> None:
    with pytest.raises(StoreError) as caught:
        policy_rights(policy, "b")
    assert (caught.value.s3_code, caught.value.status) == ("MalformedPolicy", 400)
