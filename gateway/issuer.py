"""The issuer of tokens where it is another gateway: asked whether a sequencer is its own, and still good.

Only an answer that is beyond doubt counts. Everything else is an issuer that cannot be asked: no redirect is followed,
no address but the configured one is told the API key, and nothing waits longer than a moment.
"""

import asyncio
import json
import ssl
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.errors import Unavailable
from gateway.fencing.sequencer import Sequencer
from gateway.observe.context import SENT_ALONG
from gateway.observe.events import Observe, ignore
from gateway.observe.stages import asking

TIMEOUT = 2.0
"""Seconds for an answer, all attempts together: a write is waiting."""

MAX_ANSWER = 64 * 1024
_PATH = "/v1/sequencers/check"
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the issuer says of a sequencer: that it has signed it, and that its lease still lasts."""

    authentic: bool
    held: bool


class Issuer:
    """Asks ``POST {origin}/v1/sequencers/check``. Connections are opened as they are needed."""

    def __init__(self, origin: str, api_key: str, *, timeout: float = TIMEOUT, observe: Observe = ignore) -> None:
        """``timeout`` is in seconds."""
        self._observe = observe
        self._address, self._timeout = f"{origin}{_PATH}", timeout
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
            # What is unpacked could be larger than what was sent.
            "Accept-Encoding": "identity",
        }
        self._client: httpx.AsyncClient | None = None

    async def check(self, sequencer: Sequencer) -> Verdict:
        """What the issuer says. Raises ``Unavailable`` where it says nothing that can be relied on."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._asked(sequencer)
        except TimeoutError:
            raise _unavailable(f"it has not answered within {self._timeout:g} seconds") from None

    async def close(self) -> None:
        """Close all connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _asked(self, sequencer: Sequencer) -> Verdict:
        for attempt in range(_ATTEMPTS):
            try:
                status, content = await self._sent(json.dumps({"sequencer": sequencer.text}))
            except httpx.TransportError as error:
                # A connection that was kept may have been closed meanwhile; asking changes nothing, so it is repeated.
                if attempt < _ATTEMPTS - 1 and not isinstance(error, httpx.TimeoutException):
                    continue
                raise _unavailable(f"it cannot be reached ({type(error).__name__})") from None
            if status != httpx.codes.OK:
                raise _unavailable(f"it answers with {status}")
            return _verdict(content, sequencer)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _sent(self, body: str) -> tuple[int, bytes]:
        with asking(self._observe, "issuer", "POST", _PATH) as asked:
            headers = {**self._headers, **dict(SENT_ALONG.get())}
            async with self._opened().stream("POST", self._address, content=body, headers=headers) as answer:
                asked.status, content = answer.status_code, b""
                async for chunk in answer.aiter_raw():
                    content += chunk
                    if len(content) > MAX_ANSWER:
                        raise _unavailable("its answer is too long")
                return answer.status_code, content

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            # trust_env off: no proxy of the environment is told the key. The authorities are those of the system.
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                verify=ssl.create_default_context(),
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=32, max_keepalive_connections=8),
            )
        return self._client


def _verdict(content: bytes, sequencer: Sequencer) -> Verdict:
    """Read the answer, which must be about this very sequencer."""
    try:
        said: Any = json.loads(content)
        about = said["resource"], said["mode"], said["token"]
        authentic, held = said["authentic"], said["held"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _unavailable("what answers there is no fencing gateway") from None
    if about != (sequencer.resource, sequencer.mode, str(sequencer.token)):
        raise _unavailable("its answer is about another sequencer")
    if type(authentic) is not bool or type(held) is not bool:
        raise _unavailable("what answers there is no fencing gateway")
    return Verdict(authentic, held)


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(
        f"The issuer of the fencing tokens cannot be asked: {reason}.",
        advice="Nothing was written. Send the request again; if it goes on, tell the operator of the gateway.",
    )
