"""The grants of the fencing API. A route says which one it needs, and its caller is checked before its body is read.

If the body names the resources, the endpoint checks each of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from starlette.requests import Request

from gateway.api.requests import attempt
from gateway.auth.grants import EVERYTHING, Action, Authorisation, Missing, Rights, nearest
from gateway.auth.principal import Principal
from gateway.errors import Forbidden
from gateway.fencing.headers import FencingHeaders


class About(Enum):
    """The subject of a route."""

    RESOURCE = "the resource in the path"
    BODY = "the resources in the body"
    ALL_RESOURCES = "all resources"
    EVERYTHING = "the whole gateway"
    OWN_ENTRIES = "the caller's own entries of the record"
    CALLERS = "nothing secret, but only for callers"
    PUBLIC = "nothing secret"


OPEN = (About.PUBLIC, About.CALLERS)
"""Routes about these are served before their caller is proven. Their endpoints look at the caller."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The need of a route: one of ``actions``, granted on what it is ``about``.

    ``held``: the route is about a lease that was given under the name, so another name finds none.
    """

    about: About
    actions: tuple[Action, ...] = ()
    held: bool = False


LOOK = (Action.READ, Action.LOCK, Action.BARRIER)
"""Each of these lets a caller see the fence and the lock of a resource."""
LOCK = Rule(About.RESOURCE, (Action.LOCK,))
ADMINISTER, AUDIT = Rule(About.EVERYTHING, (Action.ADMINISTER,)), Rule(About.EVERYTHING, (Action.AUDIT,))
OWN_ENTRIES = Rule(About.OWN_ENTRIES, (Action.AUDIT,))
LIST = Rule(About.ALL_RESOURCES, (Action.READ,))
CALLERS, PUBLIC = Rule(About.CALLERS), Rule(About.PUBLIC)


class ApiAuthorisation(Authorisation):
    """The checks of the fencing API."""

    async def check(self, request: Request, principal: Principal, rule: Rule, resource: str) -> None:
        """Check the rule of a route. ``resource`` is the one in the path, named in canonical form."""
        about, actions, rights = rule.about, rule.actions, principal.rights
        if about is About.RESOURCE:
            await self.on(request, principal, actions, resource, held=rule.held)
            return
        if about is About.BODY:
            on, is_granted = "any resource", any(map(rights.have, actions))
        elif about is About.ALL_RESOURCES:
            on, is_granted = f"resources {EVERYTHING}", any(rights.over(action, EVERYTHING) for action in actions)
        else:
            # Entries of anonymous callers belong to no one caller.
            owns = about is About.OWN_ENTRIES and not principal.is_anonymous
            on, is_granted = "everything", owns or any(map(rights.anywhere, actions))
        if not is_granted:
            raise await self.denied(request, principal, actions, on)

    def check_now(self, rights: Rights, rule: Rule, resource: str) -> None:
        """Check the rule of a route about a resource whose name has no encoded character, as ``check`` does.

        A denial is for ``check`` to put on record. Raises ``Forbidden`` in place of it.
        """
        if rule.about is not About.RESOURCE or not any(rights.on(action, resource) for action in rule.actions):
            raise Forbidden("The rule of the route is not met.")
        self.owns([resource])

    async def on(
        self, request: Request, principal: Principal, actions: Iterable[Action], resource: str, *, held: bool = False
    ) -> None:
        """Check that one of the actions is granted on a resource, named in canonical form, which is of this database.

        ``held``: a lease was given under this name, so it stands for no other one.
        """
        if not any(principal.rights.on(action, resource) for action in actions):
            raise await self.denied(request, principal, actions, f"resource {resource}", resource)
        self.owns([resource])
        if not held:
            await self.check_spelling([resource])

    async def over(self, request: Request, principal: Principal, actions: Iterable[Action], pattern: str) -> None:
        """Check that one of the actions is granted on all resources that a pattern covers."""
        if not any(principal.rights.over(action, pattern) for action in actions):
            raise await self.denied(request, principal, actions, f"resources {pattern}", pattern)

    async def denied(
        self, request: Request, principal: Principal, actions: Iterable[Action], on: str, resource: str = EVERYTHING
    ) -> Exception:
        """Record a denial, and return its error. ``on`` a resource or a pattern, named in ``resource``."""
        action = next(iter(actions))
        missing = Missing(action, on, resource, nearest(principal.rights, action, None, resource))
        return await self._refuse(missing, attempt(request, principal, FencingHeaders()))
