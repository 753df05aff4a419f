"""Delivery to a receiver: one signed request, the meaning of its answer, and the time of the next attempt.

Only a 2xx is a receipt. The courier follows no redirect and uses no proxy of the environment, so entries reach the
configured address or none. It reads an answer only to use the connection again, and its content is shown to no caller.
"""

import asyncio
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime

import httpx

from gateway.webhooks import messages
from gateway.webhooks.messages import Message

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 3600.0
"""Seconds from the first failure to the next attempt, and the longest pause."""
MOST_ASKED = 86400.0
"""Seconds: the longest pause that a receiver can ask for."""


def retry_pause(failures: int, chance: float) -> float:
    """Return the pause in seconds after so many failures. ``chance``, 0 to 1, spreads it over the upper half."""
    whole = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures, 64))
    return max(FIRST_PAUSE, whole * (1 + chance) / 2)


def asked_pause(retry_after: str | None, now: datetime) -> float:
    """Return the seconds that ``Retry-After`` asks for, as a number or a date (RFC 9110, 10.2.3); 0 without it.

    ``now`` is aware.
    """
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(MOST_ASKED, float(text[:9]))
    try:
        moment = parsedate_to_datetime(text)
        seconds = (moment - now).total_seconds()
    except (ValueError, TypeError, OverflowError):  # no date, or one without a zone
        return 0.0
    return min(MOST_ASKED, max(0.0, seconds))


TIMEOUT = 15.0
"""Seconds in all: to connect, to send, and until the answer has begun."""
MOST_READ = 64 * 1024
_DRAIN = 1.0
# Seconds that an idle connection is kept: shorter than at any receiver, or messages would meet its closing.
_KEPT = 4.0


@dataclass(frozen=True, slots=True)
class Receiver:
    """The address of messages, and the keys that sign them. ``repr`` shows neither: an address may be a secret, too."""

    url: str
    keys: Sequence[bytes]

    def __repr__(self) -> str:
        return "Receiver()"


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of an attempt. ``error`` is None for a receipt; ``status`` is None without an answer.

    ``wait``: seconds until the receiver wants the next attempt.
    """

    status: int | None
    error: str | None = None
    wait: float = 0.0

    @property
    def gone(self) -> bool:
        return self.status == httpx.codes.GONE


class Courier:
    """Posts messages, and opens connections when they are needed."""

    def __init__(self, *, timeout: float = TIMEOUT) -> None:
        """``timeout`` is in seconds."""
        self._timeout = timeout
        self._client: httpx.AsyncClient | None = None

    async def post(self, receiver: Receiver, message: Message, now: datetime) -> Delivery:
        """Send a message once. ``now`` is the signed time, aware; it should be right to a few minutes."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "fencing-gateway",
            "Accept-Encoding": "identity",
            **messages.headers(receiver.keys, message.id, int(now.timestamp()), message.body),
        }
        try:
            async with asyncio.timeout(self._timeout):
                request = self._opened().build_request("POST", receiver.url, content=message.body, headers=headers)
                response = await self._opened().send(request, stream=True)
        except TimeoutError:
            return Delivery(None, f"no answer within {self._timeout:g} seconds")
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            return Delivery(None, _reason(error))
        try:
            return _meaning(response, now)
        finally:
            await _finish(response)

    async def close(self) -> None:
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


def _meaning(response: httpx.Response, now: datetime) -> Delivery:
    if response.is_success:
        return Delivery(response.status_code)
    wait = asked_pause(response.headers.get("Retry-After"), now)
    return Delivery(response.status_code, f"answered with {response.status_code}", wait)


async def _finish(response: httpx.Response) -> None:
    """Read the rest of a small answer. An error here does not matter: the status is known."""
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
    """Return why there was no answer, without the error's own text, which may contain the address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return f"no answer ({type(error).__name__})"
