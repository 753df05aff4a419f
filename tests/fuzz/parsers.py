"""The parsers that meet strangers, each as a function of bytes, and what must hold of all of them.

A parser returns, or refuses with an error that it declares. It takes at most ``LONGEST`` for 64 KiB, and memory of at
most ten times its input. ``Target.memory`` says where the objects of a language take more, and why that is bounded.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import logging
import os
import re
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import uvicorn
from pydantic import ValidationError
from starlette.requests import Request
from uvicorn.server import ServerState

from gateway.api.fences import BarrierRequest
from gateway.api.leases import AcquireRequest, RenewManyRequest
from gateway.api.record_views import EventQuery
from gateway.api.routes import parsed
from gateway.auth import identity_tokens, login_cookies, post_policy, signature_claims, temporary_keys
from gateway.auth.principal import Principal
from gateway.auth.sigv4 import RequestHead, Signers, StoreCredentials, presign, sign
from gateway.config import load
from gateway.errors import ConfigurationError, GatewayError
from gateway.fencing import headers as fencing
from gateway.fencing.resource import canonical, check_pattern, covers, spelling
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token
from gateway.http import origins
from gateway.http.connection import Connection
from gateway.http.head import Head, KnownHeads
from gateway.objects import form
from gateway.objects.s3 import access_control, addressing, listing_pages, xml
from gateway.objects.s3.body import Inspection
from gateway.objects.s3.operations import Operation
from gateway.objects.s3.request import classify, combined
from gateway.objects.store.connection import Connections, _Connection
from gateway.tables.dialect import body, transaction_document
from gateway.tables.dialect import request as dialect
from gateway.tables.dialect.query import narrowed, parse_query

LARGEST = 64 * 1024
LONGEST = 0.05
"""Seconds of processor time for an input of at most ``LARGEST`` bytes."""
CONSTANT = 256 * 1024
"""Bytes that an input of any size may take: caches, tables of a parser, error texts."""
TIMES = 10
MOST_AS_JSON = 8 * LARGEST
"""Bytes of the rows that a body stands for. The gateway takes memory for them before it makes them."""

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
KEYS = StoreCredentials("AKIDEXAMPLE", "a-secret-key", "us-east-1")
OWNER = Principal("worker")
SIGNERS = Signers(lambda key, _: (OWNER, KEYS.secret_access_key) if key == KEYS.access_key_id else None, lambda: NOW)
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Target:
    """A parser, some inputs to begin with, the errors that it declares, and its limits where they are other ones."""

    parse: Callable[..., object]
    seeds: tuple[bytes, ...]
    refusals: tuple[type[BaseException], ...] = (GatewayError,)
    memory: int = TIMES
    """The most bytes of memory for a byte of the input. It is more where a parser makes objects of the input, each of
    which is larger than its text."""
    largest: int = LARGEST
    """The most bytes that are tried."""
    words: tuple[bytes, ...] = field(default=())
    """Words that the fuzzer puts together."""
    take: Callable[[bytes], tuple[Any, ...]] = lambda data: (data,)
    """Makes the arguments of the parser. Its own time and memory do not count."""


class Broken(AssertionError):
    """A property that does not hold."""


def run(target: Target, given: tuple[Any, ...]) -> None:
    """Parse once. Raises for an error that the parser does not declare."""
    try:
        target.parse(*given)
    except target.refusals as error:
        if isinstance(error, GatewayError) and error.status == 500 and not isinstance(error, ConfigurationError):
            raise Broken(f"an error of the gateway's own: {error!r}") from error


def seconds(target: Target, given: tuple[Any, ...]) -> float:
    """Return the processor time of one parse."""
    began = time.thread_time()
    run(target, given)
    return time.thread_time() - began


def check(target: Target, data: bytes, *, memory: bool = True) -> None:
    """Check all properties with one input. Raises ``Broken``, or the error that the parser does not declare."""
    given = target.take(data)
    # The best of several: other work on the processor can only add.
    if seconds(target, given) > LONGEST and (least := min(seconds(target, given) for _ in range(5))) > LONGEST:
        raise Broken(f"{len(data)} bytes take {least:.3f} s")
    if not memory:
        return
    tracemalloc.start()
    try:
        run(target, given)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    if peak > target.memory * len(data) + CONSTANT:
        raise Broken(f"{len(data)} bytes take {peak} bytes of memory, {peak / max(1, len(data)):.0f} times as much")


def amplified(data: bytes, largest: int) -> Iterable[bytes]:
    """Yield inputs of about so many bytes in which a part of the data is repeated. Large data is left alone."""
    size = len(data)
    if size > largest // 8:
        return
    for begin, end in {(0, size), (size // 3, 2 * size // 3), (size // 2, size // 2 + 1), (max(0, size - 3), size - 1)}:
        if part := data[begin:end]:
            yield data[:begin] + part * ((largest - size) // len(part)) + data[begin:]


# Inputs as targets take them apart -----------------------------------------------------------------------------------


def _head(data: bytes) -> tuple[str, bytes, bytes, Headers, bytes]:
    """Return method, path, query, headers and body of bytes that look like a request, as a lenient parser would."""
    lines, _, rest = data.partition(b"\n\n")
    first, *others = lines.split(b"\n")
    method, _, target = first.partition(b" ")
    path, _, query = target.partition(b"?")
    pairs = [line.partition(b": ") for line in others]
    return method.decode("latin-1"), path or b"/", query, [(name.lower(), value) for name, _, value in pairs], rest


def _signed(method: str, path: bytes, query: bytes, *headers: tuple[str, str], payload: str) -> bytes:
    named = [(b"host", b"gateway"), *((name.encode(), value.encode()) for name, value in headers)]
    added = sign(RequestHead(method, path, query, named), payload, KEYS, NOW)
    lines = [b": ".join(pair) for pair in named] + [f"{name}: {value}".encode() for name, value in added]
    return b"%b %b?%b\n%b" % (method.encode(), path, query, b"\n".join(lines))


def _presigned(path: bytes, query: bytes = b"") -> bytes:
    head = RequestHead("PUT", path, query, [(b"host", b"gateway")])
    return b"PUT %b?%b\nhost: gateway" % (path, presign(head, KEYS, NOW, timedelta(hours=1)).encode())


# Heads ---------------------------------------------------------------------------------------------------------------


class _Transport(Mock):
    """A transport of a connection whose other side sends and never reads."""

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)}.get(name, default)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False


_failures: list[Exception] = []


async def _app(scope: Any, receive: Any, send: Any) -> None:
    try:
        Request(scope).cookies  # noqa: B018 - what the page reads of each request
        Head.of(scope)
    except Exception as error:  # noqa: BLE001 - uvicorn would log it, and nothing else
        _failures.append(error)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


LOOP = asyncio.new_event_loop()
_SILENT = logging.Logger("of no connection", logging.CRITICAL + 1)
_CONFIG = uvicorn.Config(_app, log_config=None)
_CONFIG.loaded_app = _app


def parse_connection(data: bytes) -> None:
    """Let a connection read the bytes in three pieces, and its requests run."""

    async def converse() -> None:
        connection = Connection(
            Mock(has_made_way=False), config=_CONFIG, server_state=ServerState(), app_state={}, _loop=LOOP
        )
        connection.logger = _SILENT
        connection.connection_made(_Transport())
        third = len(data) // 3
        for piece in (data[:third], data[third : 2 * third], data[2 * third :]):
            if piece:
                connection.data_received(piece)
        await asyncio.sleep(0)
        connection.connection_lost(None)
        tasks = asyncio.all_tasks(LOOP) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if _failures:
            raise _failures.pop()

    LOOP.run_until_complete(converse())


def parse_known_head(data: bytes) -> None:
    heads: KnownHeads[Any] = KnownHeads(lambda _: None, b"key")
    heads.read(data)


def parse_origin(method: str, path: bytes, query: bytes, headers: Headers, rest: bytes) -> None:
    origins.sender(tuple(headers))
    origins.check(method, tuple(headers), ("https://app.example.com",))


# Objects -------------------------------------------------------------------------------------------------------------


def parse_signature(method: str, path: bytes, query: bytes, headers: Headers, rest: bytes) -> None:
    SIGNERS.verify(RequestHead(method, path, query, combined(headers)))


def parse_s3_request(method: str, path: bytes, query: bytes, headers: Headers, rest: bytes) -> None:
    bucket = addressing.bucket_of_host(headers, ("s3.example.com",))
    request = classify(method, path, query, combined(headers), bucket)
    access_control.acl_of_headers(request.headers)
    request.headers_of_body(headers)


def parse_chunks(method: str, path: bytes, query: bytes, headers: Headers, rest: bytes) -> None:
    """Read a body by its headers: in chunks with and without signatures and a trailer, or as it is."""
    try:
        signatures = SIGNERS.verify(RequestHead(method, path, query, headers)).chunks
    except GatewayError:
        signatures = None
    inspection = Inspection(headers, sha256=None, signatures=signatures, max_size=2**30)
    half = len(rest) // 2
    for piece in (rest[:half], rest[half:]):
        inspection.feed(piece)
    inspection.finish()


_DOCUMENTS: tuple[Callable[[bytes], object], ...] = (
    xml.deletion,
    xml.completion,
    xml.read_tags,
    xml.read_acl,
    access_control.acl_of_document,
    access_control.destinations,
)


def parse_document(data: bytes) -> None:
    """Read a document of a request, as the kind that its first byte says."""
    if data:
        _DOCUMENTS[data[0] % len(_DOCUMENTS)](data[1:])


def parse_policy(data: bytes) -> None:
    access_control.policy_rights(data, "bucket")


def parse_answer(data: bytes) -> None:
    """Read an answer of a hostile store: its head, its body, and the documents in it."""

    async def converse() -> None:
        pool = Connections("store", 80, secure=False)
        for method in ("GET", "HEAD"):
            connection = _Connection(pool, LOOP)
            connection.connection_made(_Transport())
            asking = LOOP.create_task(connection.ask(method, b"", b"", 60.0))
            await asyncio.sleep(0)
            half = len(data) // 2
            for piece in (data[:half], data[half:]):
                if piece:
                    connection.data_received(piece)
            connection.eof_received()
            connection.connection_lost(None)
            await asyncio.wait({asking})
            if asking.exception() is None:
                asking.result().rest()
        await pool.close()

    LOOP.run_until_complete(converse())
    document = data.partition(b"\r\n\r\n")[2]
    for read in (xml.read_error, xml.read_checksums, xml.read_buckets, xml.read_uploads):
        read(document)


def parse_listing(data: bytes) -> None:
    page = listing_pages.read(data)
    if page is not None:
        for operation in (Operation.LIST_OBJECTS, Operation.LIST_OBJECTS_V2):
            page.following(operation)
            listing_pages.written(operation, page, page.entries, page, decode=True)
    listing_pages.buckets(data, lambda name: name != "hidden")


def parse_form(data: bytes) -> None:
    """Read a form: its content type on the first line, then its parts, then the request in its fields."""
    kind, _, rest = data.partition(b"\n")
    parser = form.FormParser(kind.decode("latin-1"))
    half = len(rest) // 2
    for piece in (rest[:half], rest[half:]):
        parser.feed(piece)
    parser.finish()
    fields = form.named_fields(parser.fields, parser.filename, "bucket")
    read = form.read_form(fields)
    form.redirect_address(read, "etag")


def parse_post_policy(data: bytes) -> None:
    """Verify a form with this document as its policy, whose signature is right."""
    policy = base64.b64encode(data).decode()
    key = signature_claims.signing_key(KEYS.secret_access_key, "20260102", KEYS.region)
    fields = {
        "bucket": "bucket",
        "key": "a",
        "policy": policy,
        "x-amz-algorithm": "AWS4-HMAC-SHA256",
        "x-amz-credential": f"{KEYS.access_key_id}/20260102/us-east-1/s3/aws4_request",
        "x-amz-date": "20260102T030405Z",
        "x-amz-signature": hmac.digest(key, policy.encode(), "sha256").hex(),
    }
    post_policy.verify(fields, SIGNERS.secret_of, NOW)


# Tables --------------------------------------------------------------------------------------------------------------


def parse_query_string(data: bytes) -> None:
    query = parse_query(data)
    narrowed(query, "0-9")
    body.arguments_from_query(data)
    dialect.fingerprint("GET", "/", "public", data, {}, b"")


def parse_dialect_head(method: str, path: bytes, query: bytes, headers: Headers, rest: bytes) -> None:
    named = dialect.headings(headers)
    fencing.read(headers, pairs=True)
    dialect.name_of(path.decode("latin-1"), ("/v1/tables/",))
    dialect.parse_key(named)
    dialect.body_type(named)
    dialect.root_accepted(named.get(b"accept", ""))
    dialect.settled(dialect.parse(method, query, named), named, zones={"UTC"})


def parse_rows(data: bytes) -> None:
    """Read a body of each kind, as the first byte says."""
    kinds: tuple[Any, ...] = ("json", "csv", "urlencoded", "arguments", "binary", "text")
    kind: Any = kinds[data[0] % len(kinds)] if data else "json"
    content = data[1:]
    if kind in ("json", "csv", "urlencoded"):
        if body.size_as_json(kind, content) > MOST_AS_JSON:
            return  # the caller's share has to hold it, or the gateway refuses it
        payload = body.read(kind, content, None)
        for column in payload.columns[:1] if kind == "json" else ():
            payload.exact_column(column)
    if kind != "csv":
        body.arguments_from_body("json" if kind == "arguments" else kind, content, None)


def parse_transaction(data: bytes) -> None:
    transaction_document.fingerprint(transaction_document.parse(data, fencing.FencingHeaders()))


# Names and proofs ----------------------------------------------------------------------------------------------------


def parse_names(data: bytes) -> None:
    """Read a text as all that is a name or a token. One that refuses it hides no other."""
    text = data.decode("latin-1")
    for read in (Token.parse, Sequencer.parse, spelling):
        with suppress(GatewayError):
            read(text)
    pattern, _, name = text.partition("\n")
    check_pattern(pattern)
    covers(pattern, canonical(name))


def parse_proof(data: bytes) -> None:
    """Read a credential that a client keeps: a session token, a cookie, an identity token, keys of an issuer."""
    text = data.decode("latin-1")
    login_cookies.caller_of(text, lambda _: (b"key",), NOW)
    login_cookies.alleged_issuer(text)
    for read in (
        lambda: temporary_keys.read_session_token(text),
        lambda: identity_tokens.look(data),
        lambda: identity_tokens.read_keys(data),
    ):
        with suppress(GatewayError, ValueError):
            read()


def parse_api(data: bytes) -> None:
    """Read a body of the fencing API, or the parameters of a list."""
    models = (AcquireRequest, BarrierRequest, RenewManyRequest)
    if data[:1] < b"\x80":
        parsed(models[data[0] % len(models)] if data else models[0], data[1:])
        return
    query = Request({"type": "http", "query_string": data[1:], "headers": []}).query_params
    EventQuery.model_validate(dict(query))


# Configuration -------------------------------------------------------------------------------------------------------

_FILE = Path(tempfile.gettempdir()) / f"fuzzed-{os.getpid()}.toml"


def parse_configuration(data: bytes) -> None:
    """Load a file. Lines before it that begin with ``GATEWAY_`` stand for the environment."""
    content, variables = data, {}
    while match := re.match(rb"(GATEWAY_[A-Z_]{1,40})=([^\0\n]*)\n", content):
        variables[match[1].decode()] = match[2].decode("latin-1")
        content = content[match.end() :]
    before = dict(os.environ)
    _FILE.write_bytes(content)
    os.environ.update(variables)
    try:
        load(_FILE)
    finally:
        os.environ.clear()
        os.environ.update(before)
        _FILE.unlink()


# All of them ---------------------------------------------------------------------------------------------------------

_FORM = (
    b'multipart/form-data; boundary=b\n--b\r\nContent-Disposition: form-data; name="key"\r\n\r\na\r\n--b\r\n'
    b'Content-Disposition: form-data; name="file"; filename="x.txt"\r\nContent-Type: text/plain\r\n\r\nhello\r\n'
    b"--b--\r\n"
)
_LISTING = (
    b"<ListBucketResult><Name>b</Name><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated><NextMarker>a%20b"
    b"</NextMarker><KeyCount>1</KeyCount><Contents><Key>a%2Fb</Key><Size>1</Size></Contents><CommonPrefixes><Prefix>p/"
    b"</Prefix></CommonPrefixes></ListBucketResult>"
)
_ACL = (
    b"<AccessControlPolicy><Owner><ID>o</ID></Owner><AccessControlList><Grant><Grantee "
    b'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type="CanonicalUser"><ID>o</ID></Grantee>'
    b"<Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>"
)
_TOML = b"""[postgres]
dsn = "postgresql://gateway@db/app"
[s3]
endpoint = "https://store.example.com"
access_key_id = "AKIA"
secret_access_key = "secret-key"
[[callers]]
name = "writer"
api_key = "0123456789abcdef"
[[grants]]
callers = ["writer"]
actions = ["read", "write"]
resources = ["job/**"]
[[tables]]
name = "public.orders"
resource = "order/{id}"
[[objects]]
match = "reports/{job}/**"
resource = "job/{job}"
[[webhooks]]
name = "chat"
url = "https://hooks.example.com/x"
"""
_SIGNED = _signed("PUT", b"/bucket/key", b"a=b", ("content-length", "5"), payload="UNSIGNED-PAYLOAD")
_CHUNKED = b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_XML = (b"&amp;", b"<![CDATA[", b"<!DOCTYPE", b"<?xml version='1.0' encoding='utf-16'?>", b"&#x0;", b"xmlns:a=''")

TARGETS: dict[str, Target] = {
    "connection": Target(
        parse_connection,
        (
            b'GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b; c="d\\054"\r\n\r\n',
            b"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n",
            b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\nabcGET / HTTP/1.0\r\n\r\n",
            b"GET /#x HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\nPRI * HTTP/2.0\r\n\r\n",
        ),
        words=(b"Transfer-Encoding: ", b"Content-Length: ", b"HTTP/1.1", b"\r\n\r\n", b"chunked", b"Connection: "),
        memory=24,  # names and values of headers, of one head of 64 KiB at most
    ),
    "known-head": Target(
        parse_known_head,
        (
            b"PATCH /v1/tables/accounts?id=eq.1 HTTP/1.1\r\nHost: a\r\nFencing-Token: 5\r\nContent-Length: 2\r\n\r\n{}",
            b"POST /v1/leases/job/1 HTTP/1.1\r\nHost: a\r\n\r\n",
        ),
        words=(b"/v1/leases/", b"\r\nFencing-Token: ", b"\r\nContent-Length: ", b" HTTP/1.1\r\n"),
    ),
    "origin": Target(
        parse_origin,
        take=_head,
        seeds=(
            b"POST /\norigin: https://app.example.com\nhost: a\nsec-fetch-site: same-origin",
            b"GET /\nreferer: http://a/",
        ),
    ),
    "signature": Target(
        parse_signature,
        take=_head,
        seeds=(_SIGNED, _presigned(b"/bucket/key"), _presigned(b"/bucket/key", b"fencing-token=3&x-amz-acl=private")),
        words=(b"AWS4-HMAC-SHA256 Credential=", b"SignedHeaders=", b"X-Amz-Expires=", b"x-amz-content-sha256: "),
    ),
    "s3-request": Target(
        parse_s3_request,
        take=_head,
        seeds=(
            b"PUT /bucket/key?versionId=1\nhost: b.s3.example.com\nx-amz-meta-a: b\nif-none-match: *\nrange: bytes=0-9",
            b"PUT /b/k\nx-amz-copy-source: /bucket/a%20b?versionId=3\nx-amz-copy-source-if-match: e\nfencing-token: 3",
            b"GET /b?list-type=2&prefix=a%2F&X-Amz-Algorithm=a&fencing-token=3&x-amz-security-token=fencing-token%3D3",
            b'PUT /b/k?acl\nx-amz-grant-read: id="a", uri="http://acs.amazonaws.com/groups/global/AllUsers"',
        ),
        words=(b"x-amz-", b"fencing-token=", b"x-amz-copy-source", b"partNumber=", b"uploadId=", b"%2F"),
    ),
    "chunks": Target(
        parse_chunks,
        take=_head,
        seeds=(
            b"PUT /b/k\nx-amz-content-sha256: " + _CHUNKED + b"\nx-amz-decoded-content-length: 5\n"
            b"x-amz-trailer: x-amz-checksum-crc32\n\n5\r\nhello\r\n0\r\nx-amz-checksum-crc32:NhCmhg==\r\n\r\n",
            _signed(
                "PUT",
                b"/b/k",
                b"",
                ("x-amz-decoded-content-length", "5"),
                payload="STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER",
            )
            + b"\n\n5;chunk-signature="
            + b"0" * 64
            + b"\r\nhello\r\n0;chunk-signature="
            + b"0" * 64
            + b"\r\n\r\n",
            b"PUT /b/k\ncontent-length: 5\ncontent-md5: XUFAKrxLKna5cZ2REBfFkg==\nx-amz-checksum-crc32: NhCmhg==\n\nhi",
        ),
        words=(b"chunk-signature=", b"x-amz-trailer: ", b"x-amz-checksum-", b"0\r\n", b"x-amz-trailer-signature:"),
    ),
    "document": Target(
        parse_document,
        (
            b"\0<Delete><Quiet>true</Quiet><Object><Key>a</Key><VersionId>1</VersionId><ETag>e</ETag></Object></Delete>",
            (
                b"\1<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>&quot;e&quot;</ETag><ChecksumCRC32>a</"
                b"ChecksumCRC32></Part></CompleteMultipartUpload>"
            ),
            b"\2<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>",
            b"\3" + _ACL,
            b"\4" + _ACL,
            (
                b"\5<ReplicationConfiguration><Rule><Destination><Bucket>arn:aws:s3:::b</Bucket></Destination></Rule></"
                b"ReplicationConfiguration>"
            ),
        ),
        words=_XML,
    ),
    "policy": Target(
        parse_policy,
        (
            (
                b'{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"AWS":"*"},"Action":["s3:GetObject"],'
                b'"Resource":"arn:aws:s3:::bucket/*","Condition":{"StringEquals":{"a":"b"}}}]}'
            ),
        ),
    ),
    "answer": Target(
        parse_answer,
        (
            b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 5\r\n\r\nhello',
            b"HTTP/1.1 103 E\r\n\r\nHTTP/1.1 200 O\r\nTransfer-Encoding: chunked\r\n\r\n1;a\r\nx\r\n0\r\nA: b\r\n\r\n",
            b"HTTP/1.1 500 No\r\n\r\n<Error><Code>InternalError</Code><Message>m</Message></Error>",
            (
                b"HTTP/1.1 200 OK\r\nContent-Length: 97\r\n\r\n<ListMultipartUploadsResult><Upload>"
                b"<UploadId>a</UploadId></Upload></ListMultipartUploadsResult>"
            ),
        ),
        words=(b"HTTP/1.1 ", b"Transfer-Encoding: chunked", b"Content-Length: ", b"\r\n\r\n", b"Connection: close"),
    ),
    "listing": Target(
        parse_listing,
        (
            _LISTING,
            b"<ListAllMyBucketsResult><Buckets><Bucket><Name>hidden</Name></Bucket></Buckets></ListAllMyBucketsResult>",
            (
                b"<ListVersionsResult><EncodingType>url</EncodingType><Prefix>\1</Prefix><Version><Key>k</Key></Version></"
                b"ListVersionsResult>"
            ),
        ),
        words=_XML,
        memory=40,  # a page has 1,000 entries, and the store is the operator's
    ),
    "form": Target(
        parse_form,
        (
            _FORM,
            b'multipart/form-data; boundary="a b"\n--a b\r\nContent-Disposition: form-data; name=acl\r\n\r\nprivate',
        ),
        words=(b"--b\r\n", b"Content-Disposition: form-data; name=", b"filename*=UTF-8''", b"boundary="),
    ),
    "post-policy": Target(
        parse_post_policy,
        (
            (
                b'{"expiration":"2027-01-01T00:00:00Z","conditions":[{"bucket":"bucket"},["eq","$key","a"],'
                b'["starts-with","$key",""],["content-length-range",0,10]]}'
            ),
        ),
    ),
    "query": Target(
        parse_query_string,
        (
            b"select=id,a:b::text,c->d->>e,other!inner(*,x)&id=eq.1&order=a.desc.nullslast&limit=3&offset=1",
            b'or=(a.eq.1,not.and(b.in.(1,"2"),c.like(any).{a*,b}))&other.order=id&columns=a,b&on_conflict=a',
            b"a=fts(english).x&b=is.null&c=not.cs.{1,2}&d=ov.[1,2)&other.or=(x.gt.1,y.imatch.z)&n=5",
        ),
        words=(b"select=", b"or=(", b"and=(", b"not.", b".in.(", b"->>", b"::", b"eq.", b"%00", b"!inner", b"order="),
    ),
    "dialect-head": Target(
        parse_dialect_head,
        take=_head,
        seeds=(
            (
                b"PATCH /v1/tables/a?id=eq.1\nprefer: return=minimal, handling=strict, max-affected=3, timezone=UTC\n"
                b'if-match: "a", W/"b"\nfencing-token: a/1=3, b=1.2\nidempotency-key: "x\\"y"\ncontent-type: a/b'
            ),
            b"GET /v1/tables/rpc/f\naccept: text/csv;q=0.5, application/vnd.pgrst.object+json;nulls=stripped\n"
            b"range: 0-9\nfencing-sequencer: job/1:exclusive:3:" + b"a" * 43,
        ),
        words=(b"prefer: ", b"accept: ", b"if-match: ", b"fencing-token: ", b"fencing-sequencer: ", b"range: "),
    ),
    "rows": Target(
        parse_rows,
        (
            b'\0[{"a":1,"b":[1.5e300,null,"\\u00e9"]},{"a":2,"b":{}}]',
            b'\1a,b\n1,"x ""y"" \nz"\n,NULL\n',
            b"\2a=1&b=%C3%A9&c=+",
            b'\3{"a":{"b":[[[1]]]}}',
            b'\0[{"a":[' + b"{}," * 21_000 + b"{}]}]",  # the shapes that take most for their size
            b"\0[" + b'{"":[]},' * 8000 + b'{"":[]}]',
            b"\1a\n" + b"\n" * 9000,
            b"\2" + b"&".join(b"%x=" % number for number in range(9999)),
        ),
        words=(b"[", b"{", b'":', b"9007199254740993", b"1e400", b"NaN", b"\\ud800"),
        memory=48,  # of one piece, until it is looked at: one object for `{}`; the text alone stays
    ),
    "transaction": Target(
        parse_transaction,
        (
            (
                b'{"writes":[{"method":"PATCH","table":"a","query":"id=eq.1","body":{"b":1.50},"token":"3","if_match":"\\"x\\""},'
                b'{"method":"POST","table":"a","body":[{"c":null}],"token":"a/1=3","prefer":"return=minimal"}]}'
            ),
        ),
        words=(b'"writes":', b'"body":', b'"token":', b'"query":', b"\\u0000"),
    ),
    "names": Target(
        parse_names,
        (
            b"2.12",
            b"job/{job}/x",
            b"job/*/**\njob/1/a",
            b"a%2Fb",
            b"job/1:exclusive:3:" + b"a" * 43,
            b"a/../b",
        ),
        words=(b"%2F", b"**", b"{a}", b"..~"),
    ),
    "proof": Target(
        parse_proof,
        (
            b"fc1.eyJjYWxsZXIiOiJhIiwiZXhwaXJlcyI6MSwicmVzb3VyY2UiOiJhIiwidG9rZW4iOiIzIiwiaG9sZGVyIjpudWxsfQ.a",
            b"eyJhbGciOiJSUzI1NiIsImtpZCI6ImEifQ.eyJpc3MiOiJhIiwiZXhwIjoxfQ.YQ",
            (
                b'{"keys":[{"kty":"RSA","n":"sXchDaQebHnPiGvyDOAT4saGEUetSyo9MKLOoWFsueri23bOdgWp4Dy1Wl","e":"AQAB","kid":"a"},'
                b'{"kty":"EC","crv":"P-256","x":"MKBCTNIcKUSDii11ySs3526iDZ8AiTo7Tu6KPAqv7D4","y":"4Etl6SRW2YiLUrN5vfvVHuhp7x8PxltmWWlbbM4IFyM"}]}'
            ),
            login_cookies.issue_session("worker", b"key", NOW).encode(),
        ),
        words=(b"eyJ", b".", b'"keys":', b'"kty":"OKP"'),
    ),
    "api": Target(
        parse_api,
        (
            b'\0{"holder":"a","ttl":30,"wait":1.5,"barrier":true,"mode":"shared"}',
            b'\1{"token":"34","holder":null}',
            b'\2{"leases":[{"resource":"job/1","lease":"00000000-0000-4000-8000-000000000000","ttl":3}]}',
            b"\xffprefix=a&since=2026-03-01T04:05:00Z&limit=3&token=2.1&before=17&kind=rejection",
        ),
        refusals=(GatewayError, ValidationError),
        memory=20,  # parameters of a query, of one head of 64 KiB at most
    ),
    "configuration": Target(
        parse_configuration,
        (
            _TOML,
            b'GATEWAY_POSTGRES__DSN=postgresql://a@b/c\nGATEWAY_CALLERS=[{"name":"a"}]\n[server]\nlisten="[::1]:8080"\n',
            (
                b'[[databases]]\nname="north"\ndsn="postgresql://a@b/c"\nschemas=["a"]\nresources=["x/**"]\n[databases.journal]\n'
                b'dsn="postgresql://a@b/d"\n[[stores]]\nname="s"\nendpoint="http://[::1]:9000"\n'
            ),
            (
                b'[postgres]\ndsn="host=a"\n[[issuers]]\nname="i"\nissuer="https://i"\naudiences=["a"]\nkeys="https://i/k"\n'
                b'[[alarms]]\nname="a"\n[telemetry]\ntraces="http://127.0.0.1:4318"\n[audit]\nretention=7\n'
            ),
        ),
        words=(b"[[", b"]]", b'"""', b"GATEWAY_", b"https://", b"[server]", b"1979-05-27", b"inf", b"{a=1}"),
        memory=64,
        largest=8 * 1024,  # tomllib is slow, and the file is the operator's, which no stranger writes
    ),
}
