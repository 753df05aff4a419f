"""boto3 over TLS sends bodies in chunks with a checksum behind them: what is stored is the body, once it is proven."""

import base64
import binascii
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import trustme

from gateway.demo.embedded import EmbeddedPostgres
from tests.objects.clients import body_of, call, connect
from tests.objects.object_gateway import Stage, staged
from tests.objects.raw import framed, head, send

pytestmark = pytest.mark.asyncio(loop_scope="module")

UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with ``ca``, ``certificate`` and ``key``."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "ca")
    issued.private_key_pem.write_to_path(directory / "key")
    for part in issued.cert_chain_pems:
        part.write_to_path(directory / "certificate", append=True)
    return directory


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def secure(postgres_server: EmbeddedPostgres, certificates: Path) -> AsyncIterator[Stage]:
    async with staged(postgres_server, tls=(certificates / "certificate", certificates / "key")) as one:
        yield one


@pytest.mark.parametrize("size", [0, 5, 3 * 1024 * 1024 + 1])
async def test_the_stored_object_is_the_plain_body(secure: Stage, certificates: Path, key: str, size: int) -> None:
    s3 = connect(secure.origin, "33", verify=str(certificates / "ca"))
    sent: list[Any] = []
    s3.meta.events.register("before-send.s3", lambda request, **_: sent.append(request.headers))
    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    await call(s3.put_object, Key=key, Body=body, ContentType="text/plain", ContentEncoding="gzip")
    (headers,) = sent
    assert headers["X-Amz-Content-SHA256"] == UNSIGNED_TRAILER.encode()
    assert headers["Transfer-Encoding"] == b"chunked"
    assert "Content-Length" not in headers
    stored = secure.double.objects("bucket")[key]
    assert stored.content.body == body
    assert (stored.content.headers["content-type"], stored.content.headers["content-encoding"]) == (
        "text/plain",
        "gzip",
    )
    assert stored.content.checksum is not None, "what was proven is said to the store as well"
    assert await body_of(s3, key) == body


def crc32(body: bytes) -> str:
    return base64.b64encode(binascii.crc32(body).to_bytes(4, "big")).decode()


TRAILERS = [
    ("the right checksum", crc32(b"hello"), 200, ""),
    ("that of other bytes", crc32(b"hellO"), 400, "BadDigest"),
    ("none at all", None, 400, "MalformedTrailerError"),
    ("not a checksum", "?", 400, "InvalidRequest"),
]


@pytest.mark.parametrize(("name", "checksum", "status", "code"), TRAILERS, ids=[one[0] for one in TRAILERS])
async def test_the_trailer_decides(
    shared: Stage, key: str, name: str, checksum: str | None, status: int, code: str
) -> None:
    body = framed(b"hel", b"lo", trailer="" if checksum is None else f"x-amz-checksum-crc32:{checksum}")
    request = head(
        shared.origin,
        "PUT",
        f"/bucket/{key}",
        [
            ("fencing-token", "33"),
            ("content-encoding", "aws-chunked"),
            ("x-amz-decoded-content-length", "5"),
            ("x-amz-trailer", "x-amz-checksum-crc32"),
        ],
        payload=UNSIGNED_TRAILER,
        unsigned=[("content-length", str(len(body)))],
    )
    reply = await send(shared.origin, request + body)
    assert reply is not None
    assert (reply.status, reply.code) == (status, code), name
    assert shared.body(key) == (b"hello" if status == 200 else None)
    assert await shared.count("intent", key) == 0
