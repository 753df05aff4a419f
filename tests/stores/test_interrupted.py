"""How long a store waits for the rest of an interrupted body: `[s3] late_after` has to be longer."""

import asyncio
from urllib.parse import urlsplit

import pytest

from gateway.fencing.intent import LATE_AFTER
from tests.journal.installation import connected
from tests.stores.store import Store
from tests.waiting import PATIENCE

WITHOUT_END = {"moto", "versitygw"}
"""They wait for ever: docs/stores.md says what follows from it."""


async def test_the_gateway_knows_a_store_that_waits_for_ever(store: Store) -> None:
    async with connected(store.endpoint, store.owner.access_key_id, store.owner.secret_access_key) as upstream:
        await upstream.time()
        assert upstream.is_patient is (store.name == "versitygw"), "moto is for tests only"


@pytest.mark.thorough
async def test_a_body_that_is_continued_too_late_has_no_effect(store: Store) -> None:
    """As a gateway would that was paused in the middle of sending one."""
    s3 = store.connect()
    s3.create_bucket(Bucket="interrupted")
    url = urlsplit(s3.generate_presigned_url("put_object", {"Bucket": "interrupted", "Key": "k"}, ExpiresIn=15))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    head = f"PUT {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Length: 200000\r\n\r\n"
    writer.write(head.encode() + b"x" * 100_000)
    ended = False
    try:
        async with asyncio.timeout(LATE_AFTER.total_seconds()):
            ended = not (await reader.read(65536)).startswith(b"HTTP/1.1 200")
    except TimeoutError:
        pass
    except ConnectionError:
        ended = True
    writer.write(b"x" * 100_000)
    written, left = False, PATIENCE if store.name in WITHOUT_END else 2
    while not written and left > 0:
        await asyncio.sleep(0.1)
        left -= 0.1
        written = s3.list_objects_v2(Bucket="interrupted")["KeyCount"] == 1
    writer.close()
    assert written == (store.name in WITHOUT_END), f"ended: {ended}"
