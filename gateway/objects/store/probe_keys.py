"""The keys that a probe may write to: its own, below one random prefix, or a slash and that prefix. It removes them at
the end.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from uuid import uuid4

from gateway.errors import GatewayError, StoreError, Unavailable
from gateway.objects.s3 import request_headers, xml
from gateway.objects.s3.answers import Applied, Found, Missing, NotSent, Rejected, Unknown, Uploaded, WriteAnswer
from gateway.objects.s3.documents import Part
from gateway.objects.store.bucket_profile import Contender
from gateway.objects.store.client import path_of, query_of
from gateway.objects.store.operations import WITHOUT_ETAG, Upstream

PREFIX = ".fencing-gateway/probe/"

# Some stores accept one write a second for each key, and refuse others: R2 does.
_ATTEMPTS = 3
_PAUSE = 1.1
_CLEARING = 10.0
_MAX_LISTING = 4 * 1024 * 1024
_READ_ADVICE = "The gateway needs s3:GetObject and, to be told of absence, s3:ListBucket."


@dataclass(frozen=True, slots=True)
class ScratchUpload:
    """A multipart upload of one part that only has to be completed."""

    key: str
    upload_id: str
    part: str
    write_id: str


class ScratchKeys:
    def __init__(self, upstream: Upstream, bucket: str) -> None:
        self._upstream = upstream
        self._bucket = bucket
        self._prefix = f"{PREFIX}{uuid4().hex}/"
        self._written: set[str] = set()
        self._open: set[tuple[str, str]] = set()

    def drop_quotes(self) -> None:
        """Send If-Match to this bucket without quotation marks from now on."""
        self._upstream.drop_quotes(self._bucket)

    async def put(self, name: str, body: bytes, *, expected: str | None) -> Contender:
        """Send a conditional PutObject. Raises ``Unavailable`` where the outcome is not known, ``StoreError`` where the
        gateway may not write to the bucket, or there is none.
        """
        written = await _with_retries(partial(self.contend, name, body, expected=expected))
        if isinstance(written.answer, Rejected) and written.answer.status in (401, 403, 404):
            raise StoreError(written.answer.code, written.answer.status, written.answer.message)
        return written

    async def contend(self, name: str, body: bytes, *, expected: str | None) -> Contender:
        """Send a conditional PutObject in a race; its answer may be anything."""
        return await self._put(self._key(name), body, expected)

    async def occupy(self, template: str, folder: str) -> Contender:
        """Put an empty object where there is none; the answer may be anything.

        ``template`` is the key, with ``{}`` for the folder. The key may be outside of ``PREFIX`` by a slash in front.
        """
        return await self._put(path_of(template.format(f"{self._prefix}{folder}/")), b"", None)

    async def start(self, name: str, body: bytes) -> ScratchUpload | Rejected:
        """Open an upload and store its part. Raises ``Unavailable``."""
        key, write_id = self._key(name), uuid4().hex
        started = await self._upstream.create_multipart(self._bucket, key, _metadata(write_id))
        if isinstance(started, NotSent | Unknown):
            raise _inconclusive(started.reason)
        if isinstance(started, Rejected):
            return started
        self._open.add((key, started.upload_id))
        part = await self._upstream.upload_part(self._bucket, key, started.upload_id, 1, body)
        if isinstance(part, NotSent | Unknown):
            raise _inconclusive(part.reason)
        return ScratchUpload(key, started.upload_id, part.etag, write_id) if isinstance(part, Uploaded) else part

    async def complete(self, upload: ScratchUpload, *, expected: str | None) -> Contender:
        """Send a conditional CompleteMultipartUpload. Raises ``Unavailable``."""
        return await _with_retries(partial(self.contend_upload, upload, expected=expected))

    async def contend_upload(self, upload: ScratchUpload, *, expected: str | None) -> Contender:
        """Send a conditional CompleteMultipartUpload in a race; its answer may be anything."""
        self._written.add(upload.key)
        place, parts = (self._bucket, upload.key), [Part(1, upload.part)]
        answer = await self._upstream.complete_multipart(
            *place, upload.upload_id, parts, expected=expected, signed_at=await self._upstream.time()
        )
        if answer == WITHOUT_ETAG:
            state = await self._upstream.head(*place)
            if isinstance(state, Found) and state.write_id == upload.write_id:
                answer = Applied(state.etag)
        if isinstance(answer, Applied):
            self._open.discard((upload.key, upload.upload_id))
        return Contender(upload.write_id, answer)

    async def delete(self, name: str, *, expected: str) -> WriteAnswer:
        """Send a conditional DeleteObject. Raises ``Unavailable``."""
        return conclusive((await self.contend_delete(name, expected=expected)).answer)

    async def contend_delete(self, name: str, *, expected: str) -> Contender:
        """Send a conditional DeleteObject in a race; its answer may be anything."""
        signed_at = await self._upstream.time()
        answer = await self._upstream.delete(self._bucket, self._key(name), expected=expected, signed_at=signed_at)
        return Contender(None, answer)

    async def head(self, name: str) -> Found | Missing:
        """Return the object at the key. Raises ``Unavailable`` where the store does not say."""
        state = await self._upstream.head(self._bucket, self._key(name))
        if isinstance(state, Unknown):
            raise _inconclusive(state.reason, _READ_ADVICE)
        return state

    async def remove(self, name: str) -> bool:
        """Delete without a condition, as only a probe may. Return False where the store does not do it."""
        return await self._remove(self._key(name))

    async def clear(self) -> None:
        """Remove all that the probe has written. A key that the store keeps stays under ``PREFIX``, where it does no
        harm.
        """
        try:
            async with asyncio.timeout(_CLEARING), asyncio.TaskGroup() as group:
                for key, upload_id in self._open:
                    group.create_task(self._upstream.abort_multipart(self._bucket, key, upload_id))
                for key in self._written:
                    group.create_task(self._remove(key))
            await self._clear_versions()
        except (TimeoutError, GatewayError):
            return

    async def _clear_versions(self) -> None:
        """Remove the versions: in a versioned bucket all of them are still there, below a delete marker each."""
        for prefix in (self._prefix, f"/{self._prefix}"):
            query = query_of({"versions": "", "prefix": prefix})
            async with await self._upstream.send("GET", f"/{self._bucket}", query) as response:
                listed = xml.read_versions(await response.read(_MAX_LISTING))
            async with asyncio.TaskGroup() as group:
                for key, version_id in listed:
                    group.create_task(self._remove(path_of(key), query_of({"versionId": version_id})))

    async def _put(self, key: str, body: bytes, expected: str | None) -> Contender:
        write_id = uuid4().hex
        self._written.add(key)
        answer = await self._upstream.put(
            self._bucket, key, body, _metadata(write_id), expected=expected, signed_at=await self._upstream.time()
        )
        return Contender(write_id, answer)

    async def _remove(self, key: str, query: str = "") -> bool:
        try:
            response = await self._upstream.send("DELETE", f"/{self._bucket}/{key}", query)
            async with response:
                await response.read()
        except GatewayError:
            return False
        return response.status in (200, 204)

    def _key(self, name: str) -> str:
        return path_of(self._prefix + name)


def conclusive(answer: WriteAnswer) -> WriteAnswer:
    """Return the answer, if it tells the outcome of the write. Raises ``Unavailable``: such a probe proves nothing."""
    if isinstance(answer, Unknown | NotSent):
        raise _inconclusive(answer.reason)
    return answer


async def _with_retries(send: Callable[[], Awaitable[Contender]]) -> Contender:
    """Send a write again if the store refuses it because of the writes just before."""
    for _ in range(_ATTEMPTS):
        written = await send()
        conclusive(written.answer)
        if not (isinstance(written.answer, Rejected) and written.answer.status == 429):
            break
        await asyncio.sleep(_PAUSE)
    return written


def _inconclusive(reason: str, advice: str = "") -> Unavailable:
    return Unavailable(
        f"The bucket could not be probed: {reason}.", advice=f"Nothing was written. Try again later. {advice}".strip()
    )


def _metadata(write_id: str) -> Sequence[tuple[str, str]]:
    return request_headers.own_metadata("fencing-gateway/probe", "0", write_id)
