"""Every switch does what it says, at the moment it says, and to the requests it says."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import boto3
import httpx
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError, ConnectionClosedError

from tests.doubles.conftest import Call, client_for
from tests.doubles.s3 import ACCESS_KEY, REGION, SECRET_KEY, DoubleProcess, S3Double, serve
from tests.doubles.test_s3_double import begin_upload, quoted
from tests.processes import free_port
from tests.waiting import PATIENCE

WRITE_ID = "x-amz-meta-fencing-write-id"


@pytest.mark.parametrize("size", [4, 3_000_000])
async def test_a_held_request_outlives_its_client(endpoint: str, double: S3Double, size: int) -> None:
    """The late packet: its sender is dead, and it takes effect all the same when it comes."""
    late = double.hold(operation="PutObject", key="key")
    await send_and_vanish(endpoint, "PUT", "/bucket/key", bytes(size), {WRITE_ID: "w"})
    await soon(late.arrived)
    assert double.mutations == []
    late.release()
    await soon(late.finished)
    assert late.statuses == [200]
    assert [mutation.write_id for mutation in double.mutations] == ["w"]


async def test_a_held_request_is_judged_when_it_is_released(endpoint: str, double: S3Double) -> None:
    double.put("bucket", "key", b"old")
    late = double.hold(write_id="w")
    headers = {WRITE_ID: "w", "If-Match": quoted(b"old")}
    await send_and_vanish(endpoint, "PUT", "/bucket/key", b"late", headers)
    await soon(late.arrived)
    double.put("bucket", "key", b"new")
    late.release()
    await soon(late.finished)
    assert late.statuses == [412]
    assert double.applied(write_id="w") == []


@pytest.mark.parametrize(("at", "expected"), [("arrival", None), ("before", 200)])
async def test_a_signature_is_checked_on_arrival_alone(
    endpoint: str, double: S3Double, at: str, expected: int | None
) -> None:
    """A packet late on the network expires; one that the store has taken in does not."""
    late = double.hold(at)
    await send_and_vanish(endpoint, "PUT", "/bucket/key", b"late", {})
    await soon(late.arrived)
    double.behave(clock_offset=1000)
    late.release()
    await soon(late.finished)
    assert late.statuses == [expected]
    assert len(double.mutations) == (1 if expected else 0)


async def test_a_copy_is_judged_when_it_arrives(status: Call, double: S3Double) -> None:
    """Its condition holds again by then, so it takes effect a second time, as long as its signature is alive."""
    double.put("bucket", "key", b"old")
    fresh, stale, expired = (double.repeat(operation="PutObject", key="key") for _ in range(3))
    for body in (b"first", b"second", b"third"):
        held = double.objects("bucket")["key"].content.body
        assert await status("put_object", Key="key", Body=body, IfMatch=quoted(held)) == (200, "")
    for copy, standing, clock in ((fresh, b"old", 0), (stale, b"other", 0), (expired, b"second", 1000)):
        double.put("bucket", "key", standing)
        double.behave(clock_offset=clock)
        copy.release()
        await soon(copy.finished)
    assert [copy.statuses for copy in (fresh, stale, expired)] == [[200], [412], [None]]


async def test_a_request_held_after_it_was_applied(status: Call, double: S3Double) -> None:
    held = double.hold("after", key="key")
    async with asyncio.TaskGroup() as group:
        answer = group.create_task(status("put_object", Key="key", Body=b"body"))
        await soon(held.arrived)
        assert len(double.mutations) == 1
        assert not answer.done()
        held.release()
    assert answer.result() == (200, "")


@pytest.mark.parametrize(("at", "applied"), [("arrival", 0), ("before", 0), ("after", 1)])
async def test_a_cut_connection(call: Call, double: S3Double, at: str, applied: int) -> None:
    cut = double.cut(at)
    with pytest.raises(ConnectionClosedError):
        await call("put_object", Key="key", Body=b"body")
    await soon(cut.finished)
    assert len(double.mutations) == applied


@pytest.mark.parametrize("code", [500, 503])
@pytest.mark.parametrize(("at", "applied"), [("before", 0), ("after", 1)])
async def test_an_error_answer(status: Call, double: S3Double, code: int, at: str, applied: int) -> None:
    double.fail(code, at)
    assert (await status("put_object", Key="key", Body=b"body"))[0] == code
    assert len(double.mutations) == applied
    assert await status("put_object", Key="key", Body=b"body") == (200, "")


@pytest.mark.parametrize(("at", "applied"), [("before", 0), ("after", 1)])
async def test_an_error_in_an_answer_of_200(call: Call, endpoint: str, double: S3Double, at: str, applied: int) -> None:
    upload = await begin_upload(call, b"body")
    double.error_in_200(at, operation="CompleteMultipartUpload")
    document = f"<R><Part><PartNumber>1</PartNumber><ETag>{quoted(b'body')}</ETag></Part></R>".encode()
    path = f"/bucket/key?uploadId={upload['UploadId']}"
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        answer = await http.post(endpoint + path, content=document, headers=signed(endpoint, "POST", path, document))
    assert answer.status_code == 200
    assert "<Error><Code>InternalError</Code>" in answer.text
    assert len(double.mutations) == applied


async def test_a_slow_and_a_cut_body(call: Call, double: S3Double) -> None:
    double.put("bucket", "key", b"0123456789")
    double.slow_body(0.01, 2, operation="GetObject")
    started = asyncio.get_running_loop().time()
    body = (await call("get_object", Key="key"))["Body"]
    assert await asyncio.to_thread(body.read) == b"0123456789"
    assert asyncio.get_running_loop().time() - started > 0.04
    double.cut_body(4, operation="GetObject")
    body = (await call("get_object", Key="key"))["Body"]
    with pytest.raises(Exception, match="Connection broken"):
        await asyncio.to_thread(body.read)


async def test_rules_strike_what_they_match_as_often_as_they_say(status: Call, double: S3Double) -> None:
    rule = double.fail(500, operation="PutObject", key="key", nth=2, times=2)
    other = double.fail(503, method="DELETE", times=None)
    statuses = [(await status("put_object", Key=key, Body=b""))[0] for key in ["key", "other", "key", "key", "key"]]
    assert statuses == [200, 200, 500, 500, 200]
    assert rule.struck == 2
    assert [(await status("delete_object", Key="key"))[0] for _ in range(2)] == [503, 503]
    double.faults.remove(other)
    assert await status("delete_object", Key="key") == (204, "")


async def test_rules_know_an_upload_by_the_write_id_of_its_metadata(call: Call, status: Call, double: S3Double) -> None:
    upload = await begin_upload(call, b"body")
    double.fail(500, write_id="w")
    assert (await status("complete_multipart_upload", **upload))[0] == 500
    assert double.requests[-1].write_id == "w"


@pytest.mark.parametrize(
    ("ignored", "header", "expected"),
    [
        ("*", {"IfNoneMatch": "*"}, 200),
        ("PutObject", {"IfMatch": quoted(b"other")}, 200),
        ("If-Match", {"IfMatch": quoted(b"other")}, 200),
        ("If-Match", {"IfNoneMatch": "*"}, 412),
        ("PutObject:If-None-Match", {"IfNoneMatch": "*"}, 200),
        ("CompleteMultipartUpload", {"IfNoneMatch": "*"}, 412),
    ],
)
async def test_a_store_that_ignores_conditions(
    status: Call, double: S3Double, ignored: str, header: dict[str, str], expected: int
) -> None:
    double.put("bucket", "key", b"old")
    double.behave(ignored_conditions=frozenset({ignored}))
    assert (await status("put_object", Key="key", Body=b"new", **header))[0] == expected


async def test_a_store_that_refuses_conditions(status: Call, double: S3Double) -> None:
    double.behave(refused_conditions=frozenset({"*"}))
    assert await status("put_object", Key="key", Body=b"", IfNoneMatch="*") == (501, "NotImplemented")
    assert await status("put_object", Key="key", Body=b"") == (200, "")


@pytest.mark.parametrize("condition", ["If-None-Match", "If-Match"])
@pytest.mark.parametrize("gap", [None, 0.2])
async def test_one_of_many_conditional_writes_wins_unless_the_store_is_not_atomic(
    endpoint: str, double: S3Double, condition: str, gap: float | None
) -> None:
    if condition == "If-Match":
        double.put("bucket", "key", b"old")
    if gap is not None:
        double.behave(gaps={"PutObject": gap})
    value = "*" if condition == "If-None-Match" else quoted(b"old")
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:

        async def write(body: bytes) -> int:
            headers = signed(endpoint, "PUT", "/bucket/key", body, {condition: value})
            return (await http.put(f"{endpoint}/bucket/key", content=body, headers=headers)).status_code

        statuses = await asyncio.gather(*(write(str(count).encode()) for count in range(32)))
    if gap is None:
        assert sorted(statuses) == [200] + [412] * 31
    else:
        assert statuses.count(200) > 1


@pytest.mark.parametrize(
    ("method", "body", "extra", "expected"),
    [
        ("PUT", b"", {"transfer-encoding": "chunked"}, (411, "MissingContentLength")),
        ("PUT", b"body", {"x-amz-copy-source": "bucket/other"}, (403, "AccessDenied")),
        ("PUT", b"body", {"x-amz-content-sha256": "0" * 64}, (403, "SignatureDoesNotMatch")),
        ("POST", b"body", {}, (501, "NotImplemented")),
    ],
)
async def test_a_request_that_was_changed_after_it_was_signed(
    endpoint: str, double: S3Double, method: str, body: bytes, extra: dict[str, str], expected: tuple[int, str]
) -> None:
    headers = signed(endpoint, method, "/bucket/key", body) | extra
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        content = aiter_of(body) if "transfer-encoding" in extra else body
        answer = await http.request(method, f"{endpoint}/bucket/key", content=content, headers=headers)
    assert (answer.status_code, f"<Code>{expected[1]}</Code>" in answer.text) == (expected[0], True)
    assert double.mutations == []


async def test_a_body_other_than_the_signed_one_is_refused(endpoint: str, double: S3Double) -> None:
    headers = signed(endpoint, "PUT", "/bucket/key", b"body")
    async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as http:
        answer = await http.put(f"{endpoint}/bucket/key", content=b"evil", headers=headers)
    assert answer.status_code == 400
    assert double.mutations == []


async def test_a_body_that_ends_early_is_never_applied(endpoint: str, double: S3Double) -> None:
    rule = double.hold()
    await send_and_vanish(endpoint, "PUT", "/bucket/key", b"body", {}, shorter_by=1)
    await soon(rule.finished)
    assert rule.statuses == [None]
    assert double.mutations == []


async def test_a_store_that_goes_down_and_comes_back(session: boto3.Session, double: S3Double) -> None:
    """The store loses the requests that it held, but keeps the stored objects."""
    double.put("bucket", "key", b"body")
    port = free_port()
    async with serve(double, port) as endpoint:
        held = double.hold(method="PUT")
        await send_and_vanish(endpoint, "PUT", "/bucket/key", b"lost", {})
        await soon(held.arrived)
    with pytest.raises(httpx.ConnectError):
        httpx.get(endpoint, trust_env=False, timeout=PATIENCE)
    async with serve(double, port) as again:
        assert again == endpoint
        client = client_for(session, endpoint)
        got = await asyncio.to_thread(client.get_object, Bucket="bucket", Key="key")
        assert got["Body"].read() == b"body"
    assert held.statuses == [None]


def test_the_double_as_a_process(session: boto3.Session) -> None:
    with DoubleProcess.start(buckets=["bucket"]) as process:
        client, impatient = (
            client_for(session, process.endpoint),
            client_for(session, process.endpoint, read_timeout=0.2),
        )
        late = process.rule("hold", operation="PutObject", key="late", nth=1)
        with pytest.raises(Exception, match="Read timeout"):
            impatient.put_object(Bucket="bucket", Key="late", Body=b"late", Metadata={"fencing-write-id": "w"})
        late.wait_arrived()
        client.put_object(Bucket="bucket", Key="key", Body=b"body")
        sequence = process.log()["sequence"]
        late.release()
        assert late.wait_finished()["statuses"] == [200]
        assert [mutation["write_id"] for mutation in process.log(after=sequence)["mutations"]] == ["w"]
        assert set(process.objects("bucket")) == {"late", "key"}
        process.behave(ignored_conditions=["*"], gaps={"*": 0})
        client.put_object(Bucket="bucket", Key="key", Body=b"body", IfNoneMatch="*")
        process.rule("fail", status=500, code="InternalError", times=None)
        with pytest.raises(ClientError):
            client.get_object(Bucket="bucket", Key="key")
        assert process.requests()[-1]["status"] == 500
        process.reset()
        assert process.objects("bucket") == {}
    assert process.process.returncode == 0


async def test_the_control_interface_names_its_mistakes(endpoint: str) -> None:
    async with httpx.AsyncClient(base_url=f"{endpoint}/_/", trust_env=False, timeout=PATIENCE) as http:
        assert (await http.post("rules", json={"action": "explode"})).status_code == 400
        assert (await http.post("rules", json={"action": "hold", "colour": "red"})).status_code == 400
        assert (await http.get("rules/7")).status_code == 404
        assert (await http.get("nothing")).status_code == 404
        assert (await http.get("objects/absent")).status_code == 404


async def soon(event: asyncio.Event) -> None:
    async with asyncio.timeout(PATIENCE):
        await event.wait()


async def aiter_of(body: bytes) -> Any:
    yield body


def signed(endpoint: str, method: str, path: str, body: bytes, headers: dict[str, str] | None = None) -> dict[str, str]:
    """The headers of a request, signed by botocore as its own clients do."""
    request = AWSRequest(method=method, url=endpoint + path, data=body, headers=headers or {})
    S3SigV4Auth(Credentials(ACCESS_KEY, SECRET_KEY), "s3", REGION).add_auth(request)
    return dict(request.headers.items())


async def send_and_vanish(
    endpoint: str, method: str, path: str, body: bytes, headers: dict[str, str], *, shorter_by: int = 0
) -> None:
    """Send a request whole (or all but the last bytes) and close the connection at once, as a killed process does."""
    address = urlsplit(endpoint)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {address.netloc}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in signed(endpoint, method, path, body, headers).items()]
    _, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + body[: len(body) - shorter_by])
    await writer.drain()
    writer.close()
    await writer.wait_closed()
