"""Admission: whether a token may raise a fence at all, asked before the claim. The one place where policies meet I/O.

Nothing is locked here, and nothing needs to be: see ``gateway.fencing.policy``. A token that any counter may have come
to, where any is taken, is admitted without a look at the database.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.db import admission as store
from gateway.db.admission import Found
from gateway.db.database import Database
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
from gateway.issuer import Issuer


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
        self.asks_about_any = not self._policies.take_any
        """Whether ``asks_about`` can be true at all."""

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
            found = await store.standing(self._database, [(case.resource, case.token) for case in doubtful])
            # Side by side, so that all of them together wait for the issuer no longer than one.
            judged = [self._looked_up(case, known) for case, known in zip(doubtful, found, strict=True)]
            for one in await asyncio.gather(*judged, return_exceptions=True):
                if isinstance(one, BaseException):
                    raise one
                refused.append(one)
        return [one for one in refused if one is not None]

    async def _looked_up(self, case: _Case, known: Found) -> Implausible | None:
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
