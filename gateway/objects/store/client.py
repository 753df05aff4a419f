"""The hop to the object store, and the only user of aiohttp. A write is sent once, and exactly as it was signed.

A write that is repeated by a client library turns its own success into a failed condition, and a request that is
redirected or normalised on its way names another key than the one that was fenced.
"""

import asyncio
import hashlib
import io
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from gateway.auth import sigv4
from gateway.config.stores import ObjectStore
from gateway.errors import GatewayError, OutcomeUnknown, Unavailable
from gateway.objects.s3.answers import Headers
from gateway.objects.store.upload_stream import BodyStream, Outflow
from gateway.observe.events import Observe, ignore
from gateway.observe.stages import SENT_ALONG, asking

__all__ = ["BodyStream", "Hop", "Response", "TextHeaders", "clock_of"]

TextHeaders: TypeAlias = Sequence[tuple[str, str]]

# Stores close idle connections after 5 s and more. A request that meets the closing has an unknown outcome, so the
# gateway lets go first.
_KEEP_ALIVE = 4.0
_MAX_CONNECT = 5.0
_MAX_DOCUMENT = 64 * 1024
_LARGE = 512 * 1024
_UNSIGNED = "UNSIGNED-PAYLOAD"
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_NO_DEFAULTS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


class Response:
    """An answer of the store whose body has not been read yet. Close it, or use it as an async context manager.

    ``document`` is the body where it had to be read already.
    """

    def __init__(self, response: aiohttp.ClientResponse, document: bytes | None = None) -> None:
        self._response = response
        self._document = document

    @property
    def status(self) -> int:
        return self._response.status

    @property
    def headers(self) -> Headers:
        """As on the wire: a body is neither decompressed nor decoded."""
        return tuple(self._response.raw_headers)

    def header(self, name: str) -> str | None:
        """One header's value; None where the answer does not have it."""
        return self._response.headers.get(name)

    async def read(self, limit: int = _MAX_DOCUMENT) -> bytes:
        """The body up to ``limit`` bytes. Raises ``Unavailable`` where it breaks off."""
        body = bytearray()
        async with aclosing(self.chunks()) as chunks:
            async for chunk in chunks:
                body += chunk
                if len(body) >= limit:
                    break
        return bytes(body[:limit])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives. Raises ``Unavailable`` where it breaks off."""
        if self._document is not None:
            yield self._document
            return
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(f"The store's answer broke off: {_reason(error)}.") from error

    def close(self) -> None:
        """Give the connection back if the body has been read to its end, else close it."""
        self._response.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Hop:
    """A pool of connections to one store. Open and close it inside a running event loop."""

    def __init__(self, config: ObjectStore, observe: Observe = ignore) -> None:
        self._observe = observe
        self._endpoint = config.endpoint
        self._host = urlsplit(config.endpoint).netloc.rpartition("@")[2]
        self._timeout = config.timeout
        self._credentials = sigv4.StoreCredentials(
            config.access_key_id, config.secret_access_key.get_secret_value(), config.region
        )
        self._session: aiohttp.ClientSession | None = None
        self._date: str | None = None

    @property
    def store_time(self) -> datetime | None:
        """The store's clock, as it stood in its last answer; aware. None before the first one."""
        return clock_of(self._date)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_ALIVE),
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NO_DEFAULTS,
            auto_decompress=False,
            trust_env=False,
            middlewares=(_writes_once,),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(
        self,
        method: str,
        raw_path: str,
        query: str = "",
        headers: TextHeaders = (),
        body: bytes | BodyStream = b"",
        *,
        signed_at: datetime | None = None,
        expires: timedelta | None = None,
    ) -> Response:
        """Sign and send one request, a write once. Path and query are encoded already and go out as they are.

        ``signed_at`` is the time of the signature: the database's for a write; a read may leave it out. With
        ``expires`` the signature stands in the query, and the store refuses the request that much later. A stream goes
        out with its length, unsigned; what it raises breaks the request off, and comes out of here as it is.

        Raises ``Unavailable`` where nothing was sent or a read got no answer, ``OutcomeUnknown`` where a write got
        none.
        """
        if self._session is None:
            raise Unavailable("The gateway is not connected to the store.")
        if signed_at is None:
            if method not in _READS:
                raise ValueError("a write is signed with the time of its intent")
            signed_at = datetime.now(UTC)  # noqa: TID251  # a read that is sent late does no harm
        if expires is not None:
            query, signed = self._presigned(method, raw_path, query, headers, signed_at, expires)
        else:
            digest = _UNSIGNED if isinstance(body, BodyStream) else await _sha256(body)
            signed = self._signed(method, raw_path, query, headers, digest, signed_at)
        url = URL(f"{self._endpoint}{raw_path}{'?' if query else ''}{query}", encoded=True)
        with asking(self._observe, "s3", method, raw_path) as asked:
            # What goes along is not signed: on the way it may be changed.
            response = await self._sent(self._session, method, url, [*signed, *SENT_ALONG.get()], body)
            asked.status = response.status
        return response

    async def _sent(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        headers: TextHeaders,
        body: bytes | BodyStream,
    ) -> Response:
        if isinstance(body, BodyStream):
            return await self._stream(session, method, url, headers, body)
        try:
            response = await session.request(
                method,
                url,
                headers=headers,
                data=_payload(body),
                allow_redirects=False,
                timeout=_timeout(method, self._timeout),
            )
        except (aiohttp.ClientError, OSError, _InterruptedError) as error:
            raise _failure(method, error) from error
        return self._answered(response)

    async def _stream(
        self, session: aiohttp.ClientSession, method: str, url: URL, headers: TextHeaders, body: BodyStream
    ) -> Response:
        outflow = Outflow(body, self._timeout)
        headers = [*headers, ("content-length", str(body.length))]
        # The answer may take its time only once the whole body is out; until then it is the body that must move.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_connect(self._timeout), sock_read=self._timeout)
        try:
            async with outflow.watched():
                response = await session.request(
                    method, url, headers=headers, data=outflow, allow_redirects=False, timeout=timeout
                )
        except BaseException as error:
            await outflow.rested()
            if not isinstance(error, aiohttp.ClientError | OSError | _InterruptedError):
                raise
            if outflow.failure is not None:
                raise outflow.failure from None
            raise _failure(method, error) from error
        answer = self._answered(response)
        if outflow.missing:
            return await self._early(response, answer, outflow)
        return answer

    async def _early(self, response: aiohttp.ClientResponse, answer: Response, outflow: Outflow) -> Response:
        """The store has answered before it had the body: take the answer in, and stop sending."""
        try:
            async with asyncio.timeout(self._timeout):
                document = await answer.read()
        except TimeoutError as error:
            raise OutcomeUnknown("The store's answer broke off: timed out.") from error
        except Unavailable as error:
            raise OutcomeUnknown(error.message) from error
        finally:
            response.close()
            await outflow.rested()
        if answer.status < 300:
            raise OutcomeUnknown("The store reports success for a body that it does not have.")
        return Response(response, document)

    def _answered(self, response: aiohttp.ClientResponse) -> Response:
        self._date = response.headers.get("date", self._date)
        return Response(response)

    def _signed(
        self, method: str, raw_path: str, query: str, headers: TextHeaders, digest: str, signed_at: datetime
    ) -> list[tuple[str, str]]:
        """The headers with Host and those of the signature."""
        named = [("host", self._host), *headers]
        encoded = [(name.encode(), value.encode()) for name, value in named]
        head = sigv4.RequestHead(method, raw_path.encode(), query.encode(), encoded)
        return [*named, *sigv4.sign(head, digest, self._credentials, signed_at)]

    def _presigned(
        self, method: str, raw_path: str, query: str, headers: TextHeaders, signed_at: datetime, expires: timedelta
    ) -> tuple[str, TextHeaders]:
        """The query with the signature in it, and the headers with Host."""
        named = [("host", self._host), *headers]
        encoded = [(name.encode(), value.encode()) for name, value in named]
        head = sigv4.RequestHead(method, raw_path.encode(), query.encode(), encoded)
        return sigv4.presign(head, self._credentials, signed_at, expires), named


def clock_of(value: str | None) -> datetime | None:
    """The store's clock, aware. None where it does not tell."""
    try:
        date = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return date if date.tzinfo else None


class _InterruptedError(Exception):
    """A connection that broke after the request may have been sent. Not an error that aiohttp would retry after."""


_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)


async def _writes_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Keep aiohttp from sending a write again: after a lost connection it would, for PUT and DELETE as for GET."""
    try:
        return await handler(request)
    except _NOT_SENT:
        raise
    except (aiohttp.ClientError, OSError) as error:
        if request.method in _READS:
            raise
        raise _InterruptedError(_reason(error)) from error


def _failure(method: str, error: Exception) -> GatewayError:
    if isinstance(error, _NOT_SENT):
        return Unavailable(f"The store cannot be reached: {_reason(error)}.")
    if method in _READS:
        return Unavailable(f"The store did not answer: {_reason(error)}.")
    return OutcomeUnknown(f"The store did not answer: {_reason(error)}.")


def _reason(error: BaseException) -> str:
    """A short name of what happened; aiohttp's own texts carry whole requests."""
    if isinstance(error, _InterruptedError):
        return str(error)
    return "timed out" if isinstance(error, TimeoutError) else type(error).__name__


def _connect(seconds: float) -> float:
    """A connection that cannot be made is known to have carried nothing, so that must be found out first."""
    return min(seconds / 2, _MAX_CONNECT)


def _timeout(method: str, seconds: float) -> aiohttp.ClientTimeout:
    connect = _connect(seconds)
    if method == "GET":  # a body may stream for long, as long as it moves
        return aiohttp.ClientTimeout(total=None, sock_connect=connect, sock_read=seconds)
    return aiohttp.ClientTimeout(total=seconds, sock_connect=connect)


async def _sha256(body: bytes) -> str:
    """The hash (hex) that the signature covers; of a large body without holding other requests up."""
    if len(body) < _LARGE:
        return hashlib.sha256(body).hexdigest()
    return (await asyncio.to_thread(hashlib.sha256, body)).hexdigest()


def _payload(body: bytes) -> bytes | io.BytesIO | None:
    """Large bodies as a file: aiohttp writes those in pieces, and other requests get their turn in between."""
    if not body:
        return None
    return body if len(body) < _LARGE else io.BytesIO(body)
