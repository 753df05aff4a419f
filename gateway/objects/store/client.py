"""The HTTP client of the object store, and the only user of aiohttp. A write is sent once, exactly as it was signed.

A client library that repeats a write turns its own success into a failed condition. A proxy or library that redirects
or normalises a request makes it name another key than the one that was fenced. This client does neither.
"""

import asyncio
import hashlib
import io
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Self, TypeAlias
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

from gateway.auth import sigv4
from gateway.config.sections import Limits, ObjectStore
from gateway.errors import ForOperator, GatewayError, OutcomeUnknown, Unavailable
from gateway.fencing.intent import SIGNATURE_LIFETIME
from gateway.objects.s3.answers import (
    EXPIRED,
    NotApplied,
    NotSent,
    RawHeaders,
    Rejected,
    Unknown,
    WriteAnswer,
    of_write,
    refusing,
    store_refusal,
)
from gateway.objects.s3.request import Mark
from gateway.observe.events import Observe, ignore
from gateway.observe.stages import SENT_ALONG, asking, note_fault


@dataclass(frozen=True, slots=True)
class BodyStream:
    """A body of ``length`` bytes, known beforehand. An error in ``chunks`` breaks the request off unfinished."""

    chunks: AsyncIterator[bytes]
    length: int


class UploadStream:
    """One stream on its way out. The HTTP library iterates over it and writes each piece to the store.

    ``timeout``: seconds that the store may take to accept a piece. ``missing``: bytes not yet handed over.
    ``failure``: the error that the stream itself has raised.
    """

    def __init__(self, body: BodyStream, timeout: float) -> None:
        self._source = body.chunks
        self._timeout = timeout
        self._limit: asyncio.Timeout | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self.missing = body.length
        self.failure: Exception | None = None

    @asynccontextmanager
    async def watched(self) -> AsyncGenerator[None, None]:
        """Raise ``TimeoutError`` where the store stops accepting pieces while the context lasts.

        The time that the source takes does not count: its client has limits of its own.
        """
        async with asyncio.timeout(None) as limit:
            self._limit = limit
            try:
                yield
            finally:
                self._limit = None

    async def until_idle(self) -> None:
        """Return once nothing waits for the source any more, so that it can be closed."""
        await self._idle.wait()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._expect_progress(within=None)
        self._idle.clear()
        try:
            chunk = await anext(self._source)
            if len(chunk) > self.missing:
                raise ValueError("a stream is longer than its length")
        except StopAsyncIteration:
            if self.missing:
                self.failure = ValueError("a stream is shorter than its length")
                raise self.failure from None
            raise
        except Exception as error:
            self.failure = error
            raise
        finally:
            self._idle.set()
        self.missing -= len(chunk)
        self._expect_progress(within=self._timeout)
        return chunk

    def _expect_progress(self, *, within: float | None) -> None:
        if self._limit is not None:
            self._limit.reschedule(None if within is None else asyncio.get_running_loop().time() + within)


TextHeaders: TypeAlias = Sequence[tuple[str, str]]
Place: TypeAlias = tuple[str, str]
"""A bucket, and a key as it stands in a path: percent-encoded."""
RequestBody: TypeAlias = bytes | BodyStream

# Stores close idle connections after 5 seconds or more. A request that meets the closing has an unknown outcome, so the
# gateway closes first.
_KEEP_ALIVE = 4.0
_MAX_CONNECT = 5.0
# Versity S3 Gateway has no timeout for bodies.
_PATIENT = frozenset({"VERSITYGW"})
_INTERRUPTED = timedelta(days=1)
_AGREEMENT = timedelta(seconds=2)
_MAX_DOCUMENT = 64 * 1024
_LARGE = 512 * 1024
_EMPTY = hashlib.sha256(b"").hexdigest()
_MD5 = "content-md5"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_DEFAULTS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
_ACCEPTED = 202
_REFUSED = frozenset({401, 403})
_START = "Start the store, or correct s3.endpoint."


class StoreResponse:
    """A response of the store whose body is not read yet. Close it, or use it as an async context manager.

    ``document`` is the body where it had to be read already.
    """

    def __init__(self, response: aiohttp.ClientResponse, document: bytes | None = None) -> None:
        self._response = response
        self._document = document

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> RawHeaders:
        """The headers as on the wire: a body is neither decompressed nor decoded."""
        return tuple(self._response.raw_headers)

    def header(self, name: str) -> str | None:
        return self._response.headers.get(name)

    @property
    def is_tombstone(self) -> bool:
        """Whether the answer is about a tombstone, the object that stands for a deleted one."""
        return self.header(Mark.TOMBSTONE) == "true"

    async def read(self, limit: int = _MAX_DOCUMENT) -> bytes:
        """Return the body up to ``limit`` bytes. Raises ``Unavailable`` where it breaks off."""
        body = bytearray()
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= limit:
                    break
        return bytes(body[:limit])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises ``Unavailable`` where it breaks off."""
        if self._document is not None:
            yield self._document
            return
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"The store's answer broke off: {_reason(error)}.") from error

    async def raise_gateway_fault(self) -> None:
        """Raise the error for an answer that may be about the gateway: its signature, or the address of the store.

        The client must not see such an answer as if it were about its own request.
        """
        if self.status in (400, 403) or (300 <= self.status < 400 and self.status != 304):
            async with self:
                rejected = of_write(self.status, None, await self.read())
            assert isinstance(rejected, Rejected)
            raise store_refusal(rejected)

    def close(self) -> None:
        """Give the connection back if the body has been read to its end, else close it."""
        self._response.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class StoreReply:
    """A response of the store with its whole body, for passing on."""

    status: int
    headers: RawHeaders
    body: bytes


class StoreClient:
    """A pool of connections to one store. Open and close it inside a running event loop.

    ``send`` returns a response. ``exchange`` sends a write and returns what its answer means to the protocol.
    """

    def __init__(self, config: ObjectStore, observe: Observe = ignore, timeout: float = Limits.store_timeout) -> None:
        self._observe = observe
        self._endpoint = config.endpoint
        self._host = urlsplit(config.endpoint).netloc.rpartition("@")[2]
        self.at = _address(config.endpoint)
        """Host and port of the store, for operators."""
        self._timeout = timeout
        self._credentials = sigv4.StoreCredentials(
            config.access_key_id, config.secret_access_key[0].get_secret_value(), config.region
        )
        self._session: aiohttp.ClientSession | None = None
        self.store_time: datetime | None = None
        """The store's clock, as it stood in its last answer; aware. None before the first answer."""
        self.is_patient = False
        """Whether the store waits for the rest of an interrupted body for ever (docs/stores.md)."""
        self._ahead: timedelta | None = None

    def longest_put(self, late_after: timedelta) -> timedelta:
        """Return how long a put can take from its signature to its effect. ``late_after``: the configured bound.

        A store that waits for interrupted bodies sets no bound to a put that a paused gateway continues.
        """
        return SIGNATURE_LIFETIME + (max(late_after, _INTERRUPTED) if self.is_patient else late_after)

    def now(self) -> datetime:
        """Return the store's clock: its last answer, and the time since. Before that, this machine's clock."""
        if self._ahead is None:
            return datetime.now(UTC)  # noqa: TID251  # until the store has answered once
        return _local_time() + self._ahead

    async def time(self) -> datetime:
        """Return the store's clock, to sign a write with. The store is asked for it once.

        Nothing relies on it: if it is wrong, the store refuses the write too early. An intent has the time that its
        request was signed with, and the store judges both.
        """
        if self._ahead is None:
            # No HEAD: Ceph ends it like an answer with a body, and the next answer of the connection begins there.
            with suppress(Unavailable):
                async with await self.send("GET", "/") as response:
                    await response.read()
        return self.now()

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_DEFAULTS,
            auto_decompress=False,
            trust_env=False,
            middlewares=(_send_writes_once,),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def exchange(
        self,
        method: str,
        raw_path: str,
        query: str,
        headers: TextHeaders,
        body: RequestBody,
        *,
        signed_at: datetime | None,
    ) -> tuple[WriteAnswer, StoreReply | None]:
        """Send a write. Return what the store's answer means, and the answer itself; None where none arrived.

        ``signed_at``: the time of its intent. None for a request that takes no effect by itself. A request that the
        store has refused because it came too late is ``NotApplied``, with the code ``EXPIRED``.
        """
        signed_at = signed_at or await self.time()
        try:
            response = await self.send(method, raw_path, query, headers, body, signed_at=signed_at)
        except Unavailable as error:
            return NotSent(error.message), None
        except OutcomeUnknown as error:
            return Unknown(error.message), None
        async with response:
            try:
                document = await response.read()
            except Unavailable as error:
                return Unknown(error.message), None
        reply = StoreReply(response.status, response.headers, document)
        status = 200 if reply.status == _ACCEPTED else reply.status
        answer = of_write(status, response.header("etag"), document, reply.headers)
        if isinstance(answer, Rejected) and _is_expired(answer, signed_at, clock_of(response.header("date"))):
            answer = NotApplied(answer.status, EXPIRED)
        return answer, reply

    async def send(
        self,
        method: str,
        raw_path: str,
        query: str = "",
        headers: TextHeaders = (),
        body: RequestBody = b"",
        *,
        signed_at: datetime | None = None,
    ) -> StoreResponse:
        """Sign and send one request, a write once. Path and query are encoded already and go out as they are.

        ``signed_at`` is the time of the signature; None: now, by the store's clock. The signature of a write stands in
        the query, covers all headers, and expires after ``SIGNATURE_LIFETIME``. An object in memory goes with its MD5,
        a stream with its length. An error of the stream breaks the request off and is raised here as it is.

        Raises ``Unavailable`` where nothing was sent or a read got no answer, ``OutcomeUnknown`` where a write got
        none.
        """
        if self._session is None:
            raise Unavailable("The gateway is not connected to the store.")
        moment = signed_at or (self.now() if method in _READS else await self.time())
        bare = method == "PUT" and not any(name.lower() == _MD5 for name, _ in headers)
        if bare and body and not isinstance(body, BodyStream):
            headers = [*headers, (_MD5, await _md5(body))]
        response = await self._send_signed(self._session, method, raw_path, query, headers, body, moment)
        if method in _READS and _is_skewed(response, moment):  # the store's clock has jumped since its last answer
            response.close()
            response = await self._send_signed(self._session, method, raw_path, query, headers, body, self.now())
        return response

    async def _send_signed(
        self,
        session: aiohttp.ClientSession,
        method: str,
        raw_path: str,
        query: str,
        headers: TextHeaders,
        body: RequestBody,
        moment: datetime,
    ) -> StoreResponse:
        query, signed = self._signed(method, raw_path, query, headers, moment)
        url = URL(f"{self._endpoint}{raw_path}{'?' if query else ''}{query}", encoded=True)
        with asking(self._observe, "s3", method, raw_path) as asked:
            # These headers are not signed: a proxy may change them.
            response = await self._sent(session, method, url, [*signed, *SENT_ALONG.get()], body)
            asked.status = response.status
        if response.status in _REFUSED:
            note_fault(refusing(f"{method} was answered with {response.status}", self.at))
        return response

    def _signed(
        self, method: str, raw_path: str, query: str, headers: TextHeaders, signed_at: datetime
    ) -> tuple[str, TextHeaders]:
        """Return the query and the headers with Host and the signature, which stands in one of the two."""
        named = [("host", self._host), *headers]
        encoded = [(name.encode(), value.encode()) for name, value in named]
        head = sigv4.RequestHead(method, raw_path.encode(), query.encode(), encoded)
        if method not in _READS:
            return sigv4.presign(head, self._credentials, signed_at, SIGNATURE_LIFETIME), named
        return query, [*named, *sigv4.sign(head, _EMPTY, self._credentials, signed_at)]

    async def _sent(
        self, session: aiohttp.ClientSession, method: str, url: URL, headers: TextHeaders, body: RequestBody
    ) -> StoreResponse:
        if isinstance(body, BodyStream):
            return await self._streamed(session, method, url, headers, body)
        limit = _timeout(method, self._timeout)
        try:
            response = await session.request(
                method, url, headers=headers, data=_payload(body), allow_redirects=False, timeout=limit
            )
        except (aiohttp.ClientError, OSError, _InterruptedError) as error:
            raise self._failure(method, error) from error
        return self._received(response)

    async def _streamed(
        self, session: aiohttp.ClientSession, method: str, url: URL, headers: TextHeaders, body: BodyStream
    ) -> StoreResponse:
        stream = UploadStream(body, self._timeout)
        headers = [*headers, ("content-length", str(body.length))]
        # The time limit of the answer begins once the whole body is out. Until then the body has to make progress.
        limit = aiohttp.ClientTimeout(total=None, sock_connect=_connect_timeout(self._timeout), sock_read=self._timeout)
        try:
            async with stream.watched():
                response = await session.request(
                    method, url, headers=headers, data=stream, allow_redirects=False, timeout=limit
                )
        except BaseException as error:
            await stream.until_idle()
            if not isinstance(error, aiohttp.ClientError | OSError | _InterruptedError):
                raise
            if stream.failure is not None:
                raise stream.failure from None
            raise self._failure(method, error) from error
        answer = self._received(response)
        return await self._early(response, answer, stream) if stream.missing else answer

    def _failure(self, method: str, error: BaseException) -> GatewayError:
        """Return the error for a request without an answer, and note it for the log."""
        operator = ForOperator(_START, self.at, _heard(error))
        failure: GatewayError
        if isinstance(error, _NOT_SENT):
            failure = Unavailable(f"The store cannot be reached: {_reason(error)}.", operator=operator)
        elif method in _READS:
            failure = Unavailable(f"The store did not answer: {_reason(error)}.", operator=operator)
        else:
            failure = OutcomeUnknown(f"The store did not answer: {_reason(error)}.", operator=operator)
        note_fault(failure)
        return failure

    async def _early(
        self, response: aiohttp.ClientResponse, answer: StoreResponse, stream: UploadStream
    ) -> StoreResponse:
        """Read an answer that the store has sent before it had the whole body, and stop sending."""
        try:
            async with asyncio.timeout(self._timeout):
                document = await answer.read()
        except TimeoutError as error:
            raise OutcomeUnknown("The store's answer broke off: timed out.") from error
        except Unavailable as error:
            raise OutcomeUnknown(error.message) from error
        finally:
            response.close()
            await stream.until_idle()
        if answer.status < 300:
            raise OutcomeUnknown("The store reports success for a body that it does not have.")
        return StoreResponse(response, document)

    def _received(self, response: aiohttp.ClientResponse) -> StoreResponse:
        self.is_patient = self.is_patient or response.headers.get("server") in _PATIENT
        said = clock_of(response.headers.get("date"))
        if said is not None:
            self.store_time = said
            # A Date has whole seconds. A time that agrees with it stays, so that time does not jump back and forth.
            if self._ahead is None or not timedelta() <= self.now() - said <= _AGREEMENT:
                self._ahead = said - _local_time()
        return StoreResponse(response)


def path_of(key: str) -> str:
    """Return the key as it stands in a path, each byte encoded in the one way that all stores read alike."""
    return quote(key, safe="/")


async def pieces_of(chunks: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes, None]:
    """Cut a body of any length into pieces of ``size`` bytes, the last one shorter. An empty body is one piece."""
    held: list[bytes] = []
    missing, first = size, True
    async for chunk in chunks:
        rest = chunk
        while len(rest) >= missing:
            held.append(rest[:missing])
            piece, rest = b"".join(held), rest[missing:]
            held.clear()
            yield piece
            missing, first = size, False
        held.append(rest)
        missing -= len(rest)
    if first or missing < size:
        yield b"".join(held)


def place_of(bucket: str, key: str) -> Place:
    return bucket, path_of(key)


def path(place: Place) -> str:
    return "/".join(("", *place))


def query_of(parameters: Mapping[str, object]) -> str:
    """Return a query, encoded in the one way that all stores read alike. A value of None leaves its parameter out."""
    return "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value is not None)


@lru_cache(maxsize=16)  # the answers of one second have the same
def clock_of(value: str | None) -> datetime | None:
    """Return the time in a header of the store's, aware. None where there is none."""
    try:
        date = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return date if date.tzinfo else None


class _InterruptedError(Exception):
    """A connection that broke after the request may have been sent. aiohttp does not retry after this error."""


_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


async def _send_writes_once(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a write again. After a lost connection it would, for PUT and DELETE as for GET."""
    try:
        return await handler(request)
    except _NOT_SENT:
        raise
    except (aiohttp.ClientError, OSError) as error:
        if request.method in _READS:
            raise
        raise _InterruptedError(_reason(error)) from error


def _is_expired(refusal: Rejected, signed_at: datetime, store_time: datetime | None) -> bool:
    """Return whether the store has refused a request for its time. S3 has no code of its own for that."""
    if refusal.status != 403:
        return False
    said = "expired" in refusal.message.lower() or refusal.code == "RequestTimeTooSkewed"
    in_time = store_time is None or signed_at - sigv4.MAX_SKEW <= store_time < signed_at + SIGNATURE_LIFETIME
    return said or not in_time


def _local_time() -> datetime:
    """Return the time since an arbitrary moment, by a clock that cannot be set."""
    return datetime.fromtimestamp(asyncio.get_running_loop().time(), UTC)


def _is_skewed(response: StoreResponse, signed_at: datetime) -> bool:
    store_time = clock_of(response.header("date"))
    return response.status == 403 and store_time is not None and abs(store_time - signed_at) > sigv4.MAX_SKEW


def _heard(error: BaseException) -> str:
    """Return the words of the system about a failed connection."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return str(error.certificate_error)
    if isinstance(error, aiohttp.ClientConnectorError):
        return str(error.os_error.strerror or error.os_error)
    return _reason(error)


def _address(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _reason(error: BaseException) -> str:
    """Return a short name of what happened. The texts of aiohttp carry whole requests."""
    if isinstance(error, _InterruptedError):
        return str(error)
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__


def _connect_timeout(seconds: float) -> float:
    """Return a limit below that of the request: a connection that cannot be made has certainly carried nothing."""
    return min(seconds / 2, _MAX_CONNECT)


def _timeout(method: str, seconds: float) -> aiohttp.ClientTimeout:
    connect = _connect_timeout(seconds)
    if method == "GET":  # a body may stream for long, as long as it makes progress
        return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=seconds)
    return aiohttp.ClientTimeout(total=seconds, sock_connect=connect)


async def _md5(body: bytes) -> str:
    """Return the MD5 of a body as its header has it. A signature in the query does not cover the body, but this."""
    hashed = partial(hashlib.md5, body, usedforsecurity=False)
    digest = hashed() if len(body) < _LARGE else await asyncio.to_thread(hashed)
    return b64encode(digest.digest()).decode()


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    """Return a large body as a file: aiohttp writes those in pieces, and other requests run in between."""
    if not body:
        return None
    return body if len(body) < _LARGE else io.BytesIO(body)
