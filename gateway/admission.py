"""Admission: whether a token may raise a fence at all, asked before the claim. The one place where policies meet I/O.

Nothing is locked here, and nothing needs to be: see ``gateway.fencing.policy``. A token that any counter may have come
to, where any is taken, is admitted without a look at the database.
"""

import asyncio
import json
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.db import fences as store
from gateway.db.database import Database
from gateway.db.fences import TokenStanding
from gateway.errors import Unavailable
from gateway.fencing.policy import (
    Implausible,
    Policies,
    Policy,
    Reason,
    Standing,
    TokenPolicy,
    Unreachable,
    by_order,
    decide,
    is_plausible,
)
from gateway.fencing.rules import Fence, Presented
from gateway.fencing.sequencer import Sequencer, Signer
from gateway.fencing.token import Token
from gateway.observe.events import Observe, ignore
from gateway.observe.stages import SENT_ALONG, asking

TIMEOUT = 2.0
"""Seconds for an answer, all attempts together: a write is waiting."""

MAX_ANSWER = 64 * 1024
_PATH = "/v1/sequencers/check"
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class IssuerVerdict:
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

    async def check(self, sequencer: Sequencer) -> IssuerVerdict:
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

    async def _asked(self, sequencer: Sequencer) -> IssuerVerdict:
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


def _verdict(content: bytes, sequencer: Sequencer) -> IssuerVerdict:
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
    return IssuerVerdict(authentic, held)


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(
        f"The issuer of the fencing tokens cannot be asked: {reason}.",
        advice="Nothing was written. Send the request again; if it goes on, tell the operator of the gateway.",
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """A token that is shown for a resource, and the policy it is held against."""

    resource: str
    presented: Presented
    policy: Policy

    @property
    def token(self) -> Token:
        return self.presented.token

    @property
    def sequencer(self) -> Sequencer | None:
        """What proves this token for this resource; None where whatever is shown is for another."""
        shown = self.presented.sequencer
        if shown is None or (shown.resource, shown.token) != (self.resource, self.token):
            return None
        return shown

    def judged(self, policy: Policy, standing: Standing, fence: Fence | None = None) -> Implausible | None:
        reason = decide(policy, self.token, standing)
        return None if reason is None else self.refused(reason, fence)

    def refused(self, reason: Reason, fence: Fence | None) -> Implausible:
        return Implausible(self.resource, self.token, self.policy.tokens, reason, fence)


class Admission:
    """Holds tokens against the policies of their resources.

    ``issuer``: whom to ask what was issued and is held, where that is not the lease service of this database.
    """

    def __init__(
        self,
        database: Database,
        policies: Policies | None = None,
        signer: Signer | None = None,
        issuer: Issuer | None = None,
    ) -> None:
        self._database, self._issuer = database, issuer
        self._policies, self._signer = policies or Policies(), signer or Signer()

    def asks_about(self, resource: str, token: Token) -> bool:
        """Return whether this token is to be shown to ``admit`` although its fence carries it."""
        return self._policies.ask_about(resource, token)

    def asks_again(self, resource: str) -> bool:
        """Whether what was admitted may not be a moment later: the lease may have ended."""
        return self._policies.ask_every_time(resource) and self._policies.of(resource).tokens is TokenPolicy.LIVE

    async def admit(self, shown: Iterable[tuple[str, Presented]]) -> list[Implausible]:
        """Those of the tokens that are not taken, each with the resource it is shown for; empty: all are.

        A token that is overtaken passes: its fence will refuse it, and knows by whom. Raises ``Unavailable`` where only
        the issuer can tell, cannot be asked, and the policy does not let the order of tokens decide.
        """
        refused: list[Implausible | None] = []
        doubtful: list[_Case] = []
        for resource, presented in shown:
            policy = self._policies.of(resource)
            if policy.tokens is TokenPolicy.ANY and is_plausible(presented.token, None, policy.max_jump):
                continue
            case = _Case(resource, presented, policy)
            if policy.tokens is TokenPolicy.SIGNED:
                refused.append(case.judged(policy, Standing(authentic=self._authentic(case))))
            else:
                doubtful.append(case)
        if doubtful:
            found = await store.token_standing(self._database, [(case.resource, case.token) for case in doubtful])
            # Side by side, so that all of them together wait for the issuer no longer than one.
            judged = [self._looked_up(case, known) for case, known in zip(doubtful, found, strict=True)]
            for one in await asyncio.gather(*judged, return_exceptions=True):
                if isinstance(one, BaseException):
                    raise one
                refused.append(one)
        return [one for one in refused if one is not None]

    async def _looked_up(self, case: _Case, known: TokenStanding) -> Implausible | None:
        """``known``: how the token stands with this database."""
        fence = known.fence.token if known.fence else None
        standing = Standing(fence, None, known.issued, known.held)
        if self._issuer is None or case.policy.tokens is TokenPolicy.ANY:
            return case.judged(case.policy, standing, known.fence)
        if decide(case.policy, case.token, Standing(fence)) is None:
            return None  # for the fence to say
        if case.sequencer is None:
            return case.refused(Reason.NO_SEQUENCER, known.fence)
        try:
            said = await self._issuer.check(case.sequencer)
        except Unavailable:
            if case.policy.unreachable is Unreachable.REFUSE:
                raise
            return case.judged(by_order(case.policy), standing, known.fence)
        standing = Standing(fence, said.authentic, said.authentic, said.authentic and said.held)
        return case.judged(case.policy, standing, known.fence)

    def _authentic(self, case: _Case) -> bool | None:
        return None if case.sequencer is None else self._signer.is_authentic(case.sequencer)
