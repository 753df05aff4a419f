"""The way to a receiver: one signed request, and what its answer means.

Only a 2xx is a receipt. No redirect is followed and no proxy of the environment used: what is on record is told to the
configured address or to nobody. An answer is read as far as the connection can be used again for it, and no further;
what stands in it is shown to nobody.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import httpx

from gateway.webhooks import retry, signing
from gateway.webhooks.messages import Message

TIMEOUT = 15.0
"""Seconds for everything: to connect, to send, and until the answer has begun."""
MOST_READ = 64 * 1024
_DRAIN = 1.0
# Seconds a connection is kept: shorter than any receiver does, or messages would meet its closing.
_KEPT = 4.0


@dataclass(frozen=True, slots=True)
class Receiver:
    """Where messages go, and what they are signed with. ``repr`` shows neither: an address may be a secret, too."""

    url: str
    keys: Sequence[bytes]

    def __repr__(self) -> str:
        return "Receiver()"


@dataclass(frozen=True, slots=True)
class Answer:
    """What has come of it. ``error`` is None for a receipt; ``status`` None where there was no answer.

    ``wait``: seconds for which the receiver asks to be left alone.
    """

    status: int | None
    error: str | None = None
    wait: float = 0.0

    @property
    def gone(self) -> bool:
        """Whether the receiver does not want any more messages."""
        return self.status == httpx.codes.GONE


class Courier:
    """Posts messages. Connections are opened as they are needed."""

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        """``timeout`` is in seconds."""
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    async def post(self, receiver: Receiver, message: Message, now: datetime) -> Answer:
        """Send a message once. ``now`` is what it is signed with, aware, and should be right to a few minutes."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "fencing-gateway",
            "Accept-Encoding": "identity",
            **signing.headers(receiver.keys, message.id, int(now.timestamp()), message.body),
        }
        try:
            async with asyncio.timeout(self._timeout):
                request = self._opened().build_request("POST", receiver.url, content=message.body, headers=headers)
                response = await self._opened().send(request, stream=True)
        except TimeoutError:
            return Answer(None, f"no answer within {self._timeout:g} seconds")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return Answer(None, _reason(error))
        try:
            return _meaning(response, now)
        finally:
            await _finish(response)

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                verify=ssl.create_default_context(),
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=64, keepalive_expiry=_KEPT),
            )
        return self._client


def _meaning(response: httpx.Response, now: datetime) -> Answer:
    if response.is_success:
        return Answer(response.status_code)
    wait = retry.asked(response.headers.get("Retry-After"), now)
    return Answer(response.status_code, f"answered with {response.status_code}", wait)


async def _finish(response: httpx.Response) -> None:
    """Read the rest of a small answer. Whatever comes of it, the answer has been given already."""
    try:
        async with asyncio.timeout(_DRAIN):
            read = 0
            async for chunk in response.aiter_raw():
                read += len(chunk)
                if read > MOST_READ:
                    break
    except (TimeoutError, httpx.HTTPError):
        pass
    finally:
        await response.aclose()


def _reason(error: Exception) -> str:
    """Why there was no answer. Never the error's own text, in which the address may stand."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return f"no answer ({type(error).__name__})"
