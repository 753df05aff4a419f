"""The client of the object store. A write is sent once, exactly as it was signed.

A client library that repeats a write turns its own success into a failed condition. A proxy or library that redirects
or normalises a request makes it name another key than the one that was fenced. This client does neither.
"""

import asyncio
import hashlib
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import lru_cache, partial
from typing import Self, TypeAlias
from urllib.parse import quote, urlsplit

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
from gateway.objects.store.connection import READS, Answer, BodyStream, BrokenOffError, Connections, NotConnectedError
from gateway.observe.events import Observe, ignore
from gateway.observe.stages import SENT_ALONG, asking, note_fault

TextHeaders: TypeAlias = Sequence[tuple[str, str]]
Place: TypeAlias = tuple[str, str]
"""A bucket, and a key as it stands in a path: percent-encoded."""
RequestBody: TypeAlias = bytes | BodyStream

_MAX_CONNECT = 5.0
# Versity S3 Gateway has no timeout for bodies.
_PATIENT = frozenset({"VERSITYGW"})
_INTERRUPTED = timedelta(days=1)
_AGREEMENT = timedelta(seconds=2)
_MAX_DOCUMENT = 64 * 1024
_LARGE = 512 * 1024
_EMPTY = hashlib.sha256(b"").hexdigest()
_MD5 = "content-md5"
_ACCEPTED = 202
_REFUSED = frozenset({401, 403})
_START = "Start the store, or correct s3.endpoint."


class StoreResponse:
    """A response of the store whose body is not read yet. Close it, or use it as an async context manager.

    ``document`` is the body where it had to be read already.
    """

    def __init__(self, answer: Answer, document: bytes | None = None) -> None:
        self._answer, self._document = answer, document
        self._named: dict[bytes, bytes] | None = None

    @property
    def status(self) -> int:
        return self._answer.status

    @property
    def headers(self) -> RawHeaders:
        """The headers as on the wire: a body is neither decompressed nor decoded."""
        return tuple(self._answer.headers)

    def header(self, name: str) -> str | None:
        if self._named is None:
            self._named = {raw.lower(): value for raw, value in reversed(self._answer.headers)}
        value = self._named.get(name.encode())
        return None if value is None else value.decode("utf-8", "surrogateescape")

    @property
    def is_tombstone(self) -> bool:
        """Whether the answer is about a tombstone, the object that stands for a deleted one."""
        return self.header(Mark.TOMBSTONE) == "true"

    async def read(self, limit: int = _MAX_DOCUMENT) -> bytes:
        """Return the body up to ``limit`` bytes. Raises ``Unavailable`` where it breaks off."""
        if (arrived := self.arrived()) is not None:
            return arrived[:limit]
        body = bytearray()
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= limit:
                    break
        return bytes(body[:limit])

    def arrived(self) -> bytes | None:
        """Return the body that is not read yet, if all of it has arrived."""
        return self._answer.rest() if self._document is None and self._answer.is_whole else self._document

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the body as it arrives. Raises ``Unavailable`` where it breaks off."""
        if self._document is not None:
            yield self._document
            return
        try:
            async for chunk in self._answer.chunks():
                yield chunk
        except BrokenOffError as error:
            raise Unavailable(f"The store's answer broke off: {error}.") from error

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
        self._answer.close()

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
        self._connections: Connections | None = None
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
        parts = urlsplit(self._endpoint)
        secure = parts.scheme == "https"
        self._connections = Connections(parts.hostname or "", parts.port or (443 if secure else 80), secure=secure)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

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
        if self._connections is None:
            raise Unavailable("The gateway is not connected to the store.")
        moment = signed_at or (self.now() if method in READS else await self.time())
        bare = method == "PUT" and not any(name.lower() == _MD5 for name, _ in headers)
        if bare and body and not isinstance(body, BodyStream):
            headers = [*headers, (_MD5, await _md5(body))]
        response = await self._send_signed(self._connections, method, raw_path, query, headers, body, moment)
        if method in READS and _is_skewed(response, moment):  # the store's clock has jumped since its last answer
            response.close()
            response = await self._send_signed(self._connections, method, raw_path, query, headers, body, self.now())
        return response

    async def _send_signed(
        self,
        connections: Connections,
        method: str,
        raw_path: str,
        query: str,
        headers: TextHeaders,
        body: RequestBody,
        moment: datetime,
    ) -> StoreResponse:
        query, signed = self._signed(method, raw_path, query, headers, moment)
        with asking(self._observe, "s3", method, raw_path) as asked:
            # These headers are not signed: a proxy may change them. They name the span that has just begun.
            head = _head(method, raw_path, query, [*signed, *SENT_ALONG.get()], body)
            try:
                limit = self._timeout
                answer = await connections.ask(method, head, body, connect=_connect_timeout(limit), limit=limit)
                response = await self._received(answer)
            except (NotConnectedError, BrokenOffError) as error:
                raise self._failure(method, error) from error
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
        if method not in READS:
            return sigv4.presign(head, self._credentials, signed_at, SIGNATURE_LIFETIME), named
        return query, [*named, *sigv4.sign(head, _EMPTY, self._credentials, signed_at)]

    def _failure(self, method: str, error: Exception) -> GatewayError:
        """Return the error for a request without an answer, and note it for the log."""
        operator = ForOperator(_START, self.at, _heard(error))
        failure: GatewayError
        if isinstance(error, NotConnectedError):
            failure = Unavailable(f"The store cannot be reached: {error}.", operator=operator)
        elif method in READS:
            failure = Unavailable(f"The store did not answer: {error}.", operator=operator)
        else:
            failure = OutcomeUnknown(f"The store did not answer: {error}.", operator=operator)
        note_fault(failure)
        return failure

    async def _received(self, answer: Answer) -> StoreResponse:
        response = StoreResponse(answer)
        self.is_patient = self.is_patient or response.header("server") in _PATIENT
        said = clock_of(response.header("date"))
        if said is not None:
            self.store_time = said
            # A Date has whole seconds. A time that agrees with it stays, so that time does not jump back and forth.
            if self._ahead is None or not timedelta() <= self.now() - said <= _AGREEMENT:
                self._ahead = said - _local_time()
        return await _early(answer, response, self._timeout) if answer.is_early else response


async def _early(answer: Answer, response: StoreResponse, seconds: float) -> StoreResponse:
    """Read an answer that the store has sent before it had the whole body. The connection ends with it."""
    try:
        async with asyncio.timeout(seconds):
            document = await response.read()
    except TimeoutError as error:
        raise OutcomeUnknown("The store's answer broke off: timed out.") from error
    except Unavailable as error:
        raise OutcomeUnknown(error.message) from error
    finally:
        answer.close()
    if response.status < 300:
        raise OutcomeUnknown("The store reports success for a body that it does not have.")
    return StoreResponse(answer, document)


def _head(method: str, raw_path: str, query: str, headers: TextHeaders, body: RequestBody) -> bytes:
    """Return the head of a request as on the wire. Raises ``ValueError`` for text that would end a line."""
    lines = [f"{method} {raw_path}{'?' if query else ''}{query} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers]
    if method not in READS:
        lines.append(f"content-length: {body.length if isinstance(body, BodyStream) else len(body)}")
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1 or "\0" in text:
        raise ValueError("a header for the store is more than a line")
    return f"{text}\r\n\r\n".encode()


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


def _heard(error: Exception) -> str:
    """Return the words of the system about a failed connection."""
    cause = error.__cause__
    if isinstance(error, NotConnectedError) and isinstance(cause, OSError) and not isinstance(cause, TimeoutError):
        return str(cause.strerror or cause)
    return str(error)


def _address(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _connect_timeout(seconds: float) -> float:
    """Return a limit below that of the request: a connection that cannot be made has certainly carried nothing."""
    return min(seconds / 2, _MAX_CONNECT)


async def _md5(body: bytes) -> str:
    """Return the MD5 of a body as its header has it. A signature in the query does not cover the body, but this."""
    hashed = partial(hashlib.md5, body, usedforsecurity=False)
    digest = hashed() if len(body) < _LARGE else await asyncio.to_thread(hashed)
    return b64encode(digest.digest()).decode()
