"""Browser form uploads: boto3 signs the form, an HTTP client posts it, and it is a fenced PutObject."""

import asyncio
import base64
import zlib
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.demo.embedded import EmbeddedPostgres
from gateway.observe.events import WriteRefused
from tests.objects import raw
from tests.objects.clients import call, connect
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import Reply, connected, lines
from tests.tiers import first
from tests.waiting import PATIENCE

pytestmark = pytest.mark.asyncio(loop_scope="module")

MEBIBYTE = 1024 * 1024
BOUNDARY = "----a-boundary-of-a-browser"
TOKEN = "x-amz-meta-fencing-token"
HOLDER = "x-amz-meta-fencing-holder"
Fields = dict[str, str]


@dataclass(frozen=True, slots=True)
class Form:
    """A form as boto3 has signed it."""

    url: str
    fields: Fields

    def but(self, **fields: str | None) -> "Form":
        """The same with some fields changed, added, or, None, left out. ``_`` is a hyphen in their names."""
        changed = {**self.fields, **{name.replace("_", "-"): value for name, value in fields.items()}}
        return Form(self.url, {name: value for name, value in changed.items() if value is not None})

    def body(self, content: bytes, *, filename: str = "a.txt", after: Fields | None = None) -> bytes:
        return (
            b"".join(_part(name, value.encode()) for name, value in self.fields.items())
            + _part("file", content, f'; filename="{filename}"')
            + b"".join(_part(name, value.encode()) for name, value in (after or {}).items())
            + f"--{BOUNDARY}--\r\n".encode()
        )


def _part(name: str, value: bytes, more: str = "") -> bytes:
    return f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value + b"\r\n"


def signed(
    origin: str,
    key: str,
    fields: Fields | None = None,
    conditions: list[Any] | None = None,
    *,
    bucket: str = "bucket",
    lifetime: int = 600,
    **settings: Any,
) -> Form:
    """A form with a policy that allows just its fields, and what ``conditions`` add to that."""
    given = fields if fields is not None else {TOKEN: "34"}
    stated = [{name: value} for name, value in given.items()] + (conditions or [])
    form = connect(origin, **settings).generate_presigned_post(
        Bucket=bucket, Key=key, Fields=dict(given), Conditions=stated, ExpiresIn=lifetime
    )
    return Form(form["url"], form["fields"])


async def post(form: Form, content: bytes = b"content", headers: Fields | None = None, **how: Any) -> httpx.Response:
    return await send(form.url, form.body(content, **how), headers)


async def send(url: str, body: bytes, headers: Fields | None = None) -> httpx.Response:
    sent = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}", **(headers or {})}
    async with httpx.AsyncClient(timeout=20) as client:
        return await client.post(url, content=body, headers=sent)


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, Reply(answer.status_code, {}, answer.content).code


async def test_a_form_is_a_fenced_write(shared: Stage, key: str) -> None:
    described = {
        "Content-Type": "text/css",
        "Cache-Control": "no-store",
        "acl": "private",
        "x-amz-meta-colour": "red",
        "submit": "Upload",
        "x-ignore-this": "y",
        "tagging": "<Tagging><TagSet><Tag><Key>a b</Key><Value>1&amp;2</Value></Tag></TagSet></Tagging>",
    }
    titled = [["starts-with", "$x-amz-meta-title", "from "]]
    form = signed(shared.origin, f"{key}/${{filename}}", {TOKEN: "34", HOLDER: "ann", **described}, titled)
    form = form.but(x_amz_meta_title="from ${filename}")
    key = f"{key}/a 1.txt"
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        answer = await client.post(form.url, data=form.fields, files={"file": ("a 1.txt", b"content", "text/plain")})
    assert (answer.status_code, answer.content) == (204, b"")
    resource = f"s3/bucket/{key.replace(' ', '%20')}"
    assert (answer.headers["fencing-token"], answer.headers["fencing-resource"]) == ("34", resource)
    assert answer.headers["location"] == f"{shared.origin}/bucket/{key.replace(' ', '%20')}"
    found = await call(connect(shared.origin).head_object, Key=key)
    assert found["ETag"] == answer.headers["etag"]
    assert (found["ContentType"], found["CacheControl"], found["ContentLength"]) == ("text/css", "no-store", 7)
    assert found["Metadata"] == {"colour": "red", "title": "from a 1.txt"}
    assert shared.double.objects("bucket")[key].content.tags == {"a b": "1&2"}
    assert shared.body(key) == b"content"
    assert await shared.fence(resource) == "34"
    assert await shared.count("intent", key) == 0


async def test_the_answer_that_a_form_asks_for(shared: Stage, key: str) -> None:
    answer = await post(signed(shared.origin, key, {TOKEN: "34", "success_action_status": "201"}))
    assert (answer.status_code, answer.headers["fencing-token"]) == (201, "34")
    assert f"<PostResponse><Location>{shared.origin}/bucket/{key}</Location>" in answer.text
    target = "https://example.com/done?a=b"
    answer = await post(signed(shared.origin, key, {TOKEN: "34", "success_action_redirect": target}))
    etag = (await call(connect(shared.origin).head_object, Key=key))["ETag"].strip('"')
    assert (answer.status_code, answer.headers["fencing-token"]) == (303, "34")
    assert answer.headers["location"] == f"{target}&bucket=bucket&key={key}&etag=%22{etag}%22"


async def test_fenced_credentials_carry_the_token(shared: Stage, key: str) -> None:
    own = await shared.issued(resource=f"s3/bucket/{key}", token="36")
    assert (await post(signed(shared.origin, key, {}, **own))).headers["fencing-token"] == "36"
    assert code(await post(signed(shared.origin, f"{key}-2", {}, **own))) == (403, "AccessDenied")
    assert code(await post(signed(shared.origin, key, {TOKEN: "37"}, **own))) == (403, "AccessDenied")


async def test_a_stale_form_is_refused_and_on_record(shared: Stage, key: str) -> None:
    assert (await post(signed(shared.origin, key, {TOKEN: "34"}), b"new")).status_code == 204
    answer = await post(signed(shared.origin, key, {TOKEN: "33", HOLDER: "ann"}), b"old")
    assert code(answer) == (412, "StaleFencingToken")
    assert shared.body(key) == b"new"
    [rejection] = await shared.rejections(resource=f"s3/bucket/{key}")
    assert (rejection["token"], rejection["fence"], rejection["holder"]) == ("33", "34", "ann")
    assert (rejection["payload_size"], rejection["caller"], rejection["key"]) == (3, "writer", key)
    assert any(isinstance(event, WriteRefused) for event in shared.events)


async def test_the_refusal_of_a_form_without_a_token_names_the_field(shared: Stage, key: str) -> None:
    answer = await post(signed(shared.origin, key, {}))
    assert code(answer) == (428, "FencingTokenRequired")
    assert "a field x-amz-meta-fencing-token" in answer.text
    # After the file, a field says nothing.
    answer = await post(signed(shared.origin, key, {}), after={TOKEN: "34"})
    assert code(answer) == (428, "FencingTokenRequired")
    assert shared.body(key) is None


async def test_a_form_goes_to_the_bucket_it_was_signed_for(shared: Stage, key: str) -> None:
    form = signed(shared.origin, key)
    assert code(await send(f"{shared.origin}/other", form.body(b"content"))) == (403, "AccessDenied")
    assert code(await send(f"{shared.origin}/other", form.but(bucket="bucket").body(b"x"))) == (400, "InvalidArgument")
    assert key not in shared.double.objects("other")


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"x_amz_signature": "0" * 64}, (403, "SignatureDoesNotMatch")),
        ({"x_amz_credential": "AKIANOBODY/20260102/us-east-1/s3/aws4_request"}, (400, "InvalidArgument")),
        ({"policy": None}, (400, "InvalidArgument")),
        ({"Signature": "v2", "AWSAccessKeyId": "AKIAWRITER"}, (400, "InvalidRequest")),
        ({"x_amz_meta_fencing_token": "99"}, (403, "AccessDenied")),
        ({"fencing_token": "99"}, (403, "AccessDenied")),
        ({"success_action_redirect": "https://evil.example"}, (403, "AccessDenied")),
        ({"key": "another"}, (403, "AccessDenied")),
    ],
)
async def test_what_the_policy_does_not_allow(
    shared: Stage, key: str, changed: dict[str, str | None], expected: tuple[int, str]
) -> None:
    before = len(shared.double.requests)
    assert code(await post(signed(shared.origin, key).but(**changed))) == expected
    assert shared.body(key) is None
    assert shared.written(before) == []


async def test_a_form_whose_file_never_begins_is_refused(shared: Stage) -> None:
    answer = await send(f"{shared.origin}/bucket", b"\r\n" + b"x" * MEBIBYTE)
    assert code(answer) == (400, "MalformedPOSTRequest")
    assert "does not begin" in answer.text


async def test_a_checksum_is_verified(shared: Stage, key: str) -> None:
    crc = base64.b64encode(zlib.crc32(b"content").to_bytes(4, "big")).decode()
    form = signed(shared.origin, key, {TOKEN: "34", "x-amz-checksum-crc32": crc})
    assert code(await post(form, b"Content")) == (400, "BadDigest")
    assert shared.body(key) is None
    assert (await post(form)).status_code == 204
    found = await call(connect(shared.origin).head_object, Key=key, ChecksumMode="ENABLED")
    assert found["ChecksumCRC32"] == crc


@pytest.mark.parametrize("size", first([21 * MEBIBYTE, 0, 8 * MEBIBYTE - 100, 8 * MEBIBYTE + 1]))
async def test_files_of_any_size(shared: Stage, key: str, size: int) -> None:
    content = (bytes(range(256)) * (size // 256 + 1))[:size]
    answer = await post(signed(shared.origin, key, {TOKEN: "34", "x-amz-meta-colour": "red"}), content)
    assert answer.status_code == 204, answer.text
    assert shared.body(key) == content
    found = await call(connect(shared.origin).head_object, Key=key)
    assert (found["ETag"], found["Metadata"]) == (answer.headers["etag"], {"colour": "red"})
    assert ("-" in found["ETag"]) == (size > 8 * MEBIBYTE)
    assert shared.uploads(key) == []
    assert await shared.count("upload", key) == 0


@pytest.mark.parametrize("size", first([7, 12 * MEBIBYTE]))
@pytest.mark.parametrize("fault", ["gone", "cut", "boundary", "checksum", "small", "large"])
async def test_nothing_is_published_of_a_form_that_is_not_whole(shared: Stage, key: str, size: int, fault: str) -> None:
    fields, conditions = {TOKEN: "34"}, []
    if fault == "checksum":
        fields["x-amz-checksum-crc32"] = "AAAAAA=="
    elif fault in ("small", "large"):
        conditions.append(["content-length-range", 0, size - 1] if fault == "large" else
                          ["content-length-range", size + 1, size + 2])  # fmt: skip
    form = signed(shared.origin, key, fields, conditions)
    body = form.body(b"x" * size)
    if fault == "boundary":
        body = body[:-4] + b"\r\n"
    elif fault == "cut":
        body = body[: -len(BOUNDARY) - 6]
    if fault == "gone":
        head = lines("POST", "/bucket", [("host", "a"), ("content-length", str(len(body))),
                                         ("content-type", f"multipart/form-data; boundary={BOUNDARY}")])  # fmt: skip
        _, writer = await connected(shared.origin)
        writer.write(head + body[:-2])
        await writer.drain()
        await asyncio.sleep(0.3)
        writer.close()
    else:
        expected = {"checksum": "BadDigest", "small": "EntityTooSmall", "large": "EntityTooLarge"}
        assert code(await send(form.url, body)) == (400, expected.get(fault, "MalformedPOSTRequest"))
    async with asyncio.timeout(PATIENCE):
        while shared.uploads(key) or await shared.count("upload", key):
            await asyncio.sleep(0.02)
    assert shared.body(key) is None
    assert await shared.fence(f"s3/bucket/{key}") is None


async def test_a_large_stale_form_is_not_staged(shared: Stage, key: str) -> None:
    assert (await post(signed(shared.origin, key, {TOKEN: "34"}), b"new")).status_code == 204
    before = len(shared.double.requests)
    answer = await post(signed(shared.origin, key, {TOKEN: "33"}), b"x" * (9 * MEBIBYTE))
    assert code(answer) == (412, "StaleFencingToken")
    assert shared.written(before) == []
    assert len(await shared.rejections(resource=f"s3/bucket/{key}")) == 1


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Fencing-Token": "99"}, (403, "AccessDenied")),
        ({"If-None-Match": "*"}, (403, "AccessDenied")),
        ({"Authorization": "AWS4-HMAC-SHA256 Credential=x"}, (400, "InvalidArgument")),
    ],
)
async def test_unsigned_headers_of_a_form_are_refused(
    shared: Stage, key: str, headers: Fields, expected: tuple[int, str]
) -> None:
    assert code(await post(signed(shared.origin, key), headers=headers)) == expected
    assert shared.body(key) is None


@pytest.mark.parametrize(
    ("method", "target"),
    [("POST", "/bucket?delete"), ("POST", "/bucket/key?uploads"), ("PUT", "/bucket/key"), ("POST", "/")],
)
async def test_no_other_operation_gets_in_as_a_form(shared: Stage, key: str, method: str, target: str) -> None:
    before = len(shared.double.requests)
    body = signed(shared.origin, key).body(b"content")
    async with httpx.AsyncClient(timeout=PATIENCE) as client:
        answer = await client.request(
            method,
            shared.origin + target,
            content=body,
            headers={"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"},
        )
    assert code(answer) == (403, "AccessDenied")
    assert shared.written(before) == []


async def test_a_signed_post_that_is_no_form(shared: Stage) -> None:
    reply = await raw.ask(
        shared.origin,
        raw.head(shared.origin, "POST", "/bucket", [("fencing-token", "34")], unsigned=[("content-length", "0")]),
    )
    assert (reply.status, reply.code) == (412, "PreconditionFailed")


async def test_a_form_for_the_host_of_a_bucket(postgres_server: EmbeddedPostgres, key: str) -> None:
    async with staged(postgres_server, server={"domains": ["s3.example.com"], "max_body": 1000}) as stage:
        form = signed(stage.origin, key)
        answer = await send(stage.origin, form.body(b"content"), {"Host": "bucket.s3.example.com"})
        assert answer.status_code == 204
        assert stage.body(key) == b"content"
        assert code(await post(form, b"x" * 1001)) == (413, "EntityTooLarge")
        assert code(await post(form, b"x" * 200_000)) == (413, "EntityTooLarge")
        assert (await post(form, b"x" * 1000)).status_code == 204
