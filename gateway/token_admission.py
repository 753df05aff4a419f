"""Admission: whether a token may raise a fence at all, checked before the claim. The only I/O of policies.

Nothing is locked here, and nothing needs to be: see ``gateway.fencing.token_policy``. If the policy accepts any token,
a plausible one is admitted without a query.
"""

import asyncio
import json
import ssl
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.db import fences as store
from gateway.db.database import Database
from gateway.db.fences import TokenState
from gateway.errors import Unavailable
from gateway.fencing.decision import Fence, Presented
from gateway.fencing.sequencer import Sequencer, Signer
from gateway.fencing.token import Token
from gateway.fencing.token_policy import (
    ImplausibleToken,
    Policies,
    Policy,
    Reason,
    TokenFacts,
    TokenPolicy,
    Unreachable,
    is_plausible,
    judge,
    relax_to_order,
)
from gateway.observe.events import Observe, ignore
from gateway.observe.stages import SENT_ALONG, asking

TIMEOUT = 2.0
"""Seconds for an answer, including all attempts, because a write is waiting."""

MAX_ANSWER = 64 * 1024
_PATH = "/v1/sequencers/check"
_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class IssuerVerdict:
    """The answer of the issuer about a sequencer: whether it signed it, and whether its lease is running."""

    authentic: bool
    held: bool


class Issuer:
    """The client of ``POST {origin}/v1/sequencers/check``. It opens connections as needed."""

    def __init__(self, origin: str, api_key: str, *, timeout: float = TIMEOUT, observe: Observe = ignore) -> None:
        self._observe = observe
        self._address, self._timeout = f"{origin}{_PATH}", timeout
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
            # A compressed answer could expand beyond the limit.
            "Accept-Encoding": "identity",
        }
        self._client: httpx.AsyncClient | None = None

    async def check(self, sequencer: Sequencer) -> IssuerVerdict:
        """Ask the issuer about a sequencer. Raises ``Unavailable`` without a reliable answer."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._request(sequencer)
        except TimeoutError:
            raise _unavailable(f"it has not answered within {self._timeout:g} seconds") from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _request(self, sequencer: Sequencer) -> IssuerVerdict:
        for attempt in range(_ATTEMPTS):
            try:
                status, content = await self._send(json.dumps({"sequencer": sequencer.text}))
            except (httpx.TransportError, httpx.InvalidURL) as error:
                # The issuer may have closed an idle connection. The request changes nothing, so it is repeated.
                if attempt < _ATTEMPTS - 1 and not isinstance(error, httpx.TimeoutException):
                    continue
                raise _unavailable(f"it cannot be reached ({type(error).__name__})") from None
            if status != httpx.codes.OK:
                raise _unavailable(f"it answers with {status}")
            return _verdict(content, sequencer)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _send(self, body: str) -> tuple[int, bytes]:
        with asking(self._observe, "issuer", "POST", _PATH) as exchange:
            headers = {**self._headers, **dict(SENT_ALONG.get())}
            async with self._connected().stream("POST", self._address, content=body, headers=headers) as answer:
                exchange.status, content = answer.status_code, b""
                async for chunk in answer.aiter_raw():
                    content += chunk
                    if len(content) > MAX_ANSWER:
                        raise _unavailable("its answer is too long")
                return answer.status_code, content

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            # trust_env off: no proxy of the environment receives the key. The authorities are those of the system.
            self._client = httpx.AsyncClient(
                follow_redirects=False,
                trust_env=False,
                verify=ssl.create_default_context(),
                timeout=self._timeout,
                limits=httpx.Limits(max_connections=32, max_keepalive_connections=8),
            )
        return self._client


def _verdict(content: bytes, sequencer: Sequencer) -> IssuerVerdict:
    """Read the answer, which must be about this sequencer."""
    try:
        answer: Any = json.loads(content)
        about = answer["resource"], answer["mode"], answer["token"]
        authentic, held = answer["authentic"], answer["held"]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise _unavailable("the server there is no fencing gateway") from None
    if about != (sequencer.resource, sequencer.mode, str(sequencer.token)):
        raise _unavailable("its answer is about another sequencer")
    if type(authentic) is not bool or type(held) is not bool:
        raise _unavailable("the server there is no fencing gateway")
    return IssuerVerdict(authentic, held)


def _unavailable(reason: str) -> Unavailable:
    return Unavailable(
        f"The issuer of the fencing tokens cannot be asked: {reason}.",
        advice="Nothing was written. Retry the request. If the problem persists, tell the operator of the gateway.",
    )


@dataclass(frozen=True, slots=True)
class _Case:
    """A token that a request presents for a resource, and the policy of the resource."""

    resource: str
    presented: Presented
    policy: Policy

    @property
    def token(self) -> Token:
        return self.presented.token

    @property
    def sequencer(self) -> Sequencer | None:
        """Return the sequencer that proves this token for this resource; None if there is none."""
        shown = self.presented.sequencer
        if shown is None or (shown.resource, shown.token) != (self.resource, self.token):
            return None
        return shown

    def judge(self, policy: Policy, standing: TokenFacts, fence: Fence | None = None) -> ImplausibleToken | None:
        reason = judge(policy, self.token, standing)
        return None if reason is None else self.refusal(reason, fence)

    def refusal(self, reason: Reason, fence: Fence | None) -> ImplausibleToken:
        return ImplausibleToken(self.resource, self.token, self.policy.tokens, reason, fence)


class Admission:
    """Checks tokens against the policies of their resources.

    ``issuer`` knows the issued and held tokens, unless the lease service of this database does.
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
        self.asks_about_any = not self._policies.take_any
        """Whether ``asks_about`` can be true at all."""

    def asks_about(self, resource: str, token: Token) -> bool:
        """Return whether ``admit`` must check this token although its fence carries it."""
        return self._policies.ask_about(resource, token)

    def asks_again(self, resource: str) -> bool:
        """Return whether every write needs a new check, because the lease of an admitted token may have ended."""
        return self._policies.ask_every_time(resource) and self._policies.of(resource).tokens is TokenPolicy.LIVE

    def takes(self, resource: str, token: Token) -> bool:
        """Return whether ``admit`` would take this token without a query."""
        policy = self._policies.of(resource)
        return policy.tokens is TokenPolicy.ANY and is_plausible(token, None, policy.max_jump)

    async def admit(
        self, shown: Iterable[tuple[str, Presented]], enforced: Container[str] | None = None
    ) -> list[ImplausibleToken]:
        """Return the refused tokens, each with its resource. An empty list admits all.

        An overtaken token passes, because its fence will refuse it and knows who overtook it. Raises ``Unavailable`` if
        only the issuer can tell, it is unreachable, and the policy does not let the order of tokens decide.

        ``enforced``: the resources whose rules enforce, None for all. A token of another one is refused in that case.
        """
        refused: list[ImplausibleToken | None] = []
        doubtful: list[_Case] = []
        for resource, presented in shown:
            policy = self._policies.of(resource)
            if policy.tokens is TokenPolicy.ANY and is_plausible(presented.token, None, policy.max_jump):
                continue
            case = _Case(resource, presented, policy)
            if policy.tokens is TokenPolicy.SIGNED:
                refused.append(case.judge(policy, TokenFacts(authentic=self._authentic(case))))
            else:
                doubtful.append(case)
        if doubtful:
            found = await store.read_token_states(self._database, [(case.resource, case.token) for case in doubtful])
            # Concurrently, so that all of them wait for the issuer no longer than one.
            checks = [
                self._check(case, known, observed=enforced is not None and case.resource not in enforced)
                for case, known in zip(doubtful, found, strict=True)
            ]
            for one in await asyncio.gather(*checks, return_exceptions=True):
                if isinstance(one, BaseException):
                    raise one
                refused.append(one)
        return [one for one in refused if one is not None]

    async def _check(self, case: _Case, known: TokenState, *, observed: bool) -> ImplausibleToken | None:
        """Judge a case. ``known`` is the state of the token in this database."""
        fence = known.fence.token if known.fence else None
        standing = TokenFacts(fence, None, known.issued, known.held)
        if self._issuer is None or case.policy.tokens is TokenPolicy.ANY:
            return case.judge(case.policy, standing, known.fence)
        if judge(case.policy, case.token, TokenFacts(fence)) is None:
            return None  # the fence decides
        if case.sequencer is None:
            return case.refusal(Reason.NO_SEQUENCER, known.fence)
        try:
            verdict = await self._issuer.check(case.sequencer)
        except Unavailable:
            if case.policy.unreachable is Unreachable.REFUSE:
                if observed:
                    return case.refusal(Reason.UNCHECKED, known.fence)
                raise
            return case.judge(relax_to_order(case.policy), standing, known.fence)
        standing = TokenFacts(fence, verdict.authentic, verdict.authentic, verdict.authentic and verdict.held)
        return case.judge(case.policy, standing, known.fence)

    def _authentic(self, case: _Case) -> bool | None:
        return None if case.sequencer is None else self._signer.is_authentic(case.sequencer)
