"""The grant that each route of the fencing API needs: one table. A gateway with a route that it lacks does not start.

``Authorised`` checks it before the body is read. If the body names the resources, the endpoint checks each of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from fastapi import Request
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.api.requests import Authenticate, attempt
from gateway.auth.grants import EVERYTHING, Action, Authorisation, Missing, nearest
from gateway.auth.principal import Principal
from gateway.fencing.headers import FencingHeaders
from gateway.fencing.resource import canonical


class About(Enum):
    """The subject of a route."""

    RESOURCE = "the resource in the path"
    BODY = "the resources in the body"
    ALL_RESOURCES = "all resources"
    EVERYTHING = "the whole gateway"
    OWN_ENTRIES = "the caller's own entries of the record"
    CALLERS = "nothing secret, but only for callers"
    PUBLIC = "nothing secret"


@dataclass(frozen=True, slots=True)
class Rule:
    """The need of a route: one of ``actions``, granted on what it is ``about``.

    ``held``: the route is about a lease that was given under the name, so another name finds none.
    """

    about: About
    actions: tuple[Action, ...] = ()
    held: bool = False


_LOCK = Rule(About.RESOURCE, (Action.LOCK,))
_LEASE = Rule(About.RESOURCE, (Action.LOCK,), held=True)
LOOK = (Action.READ, Action.LOCK, Action.BARRIER)
"""Each of these lets a caller see the fence and the lock of a resource."""
_ADMINISTER = Rule(About.EVERYTHING, (Action.ADMINISTER,))
_AUDIT = Rule(About.EVERYTHING, (Action.AUDIT,))
_OWN = Rule(About.OWN_ENTRIES, (Action.AUDIT,))
_CALLERS, _PUBLIC = Rule(About.CALLERS), Rule(About.PUBLIC)

RULES: dict[tuple[str, str], Rule] = {
    ("POST", "/v1/leases/{resource:path}"): _LOCK,
    ("PUT", "/v1/leases/{resource:path}/{lease}"): _LEASE,
    ("DELETE", "/v1/leases/{resource:path}/{lease}"): _LEASE,
    ("PUT", "/v1/leases"): Rule(About.BODY, (Action.LOCK,)),
    ("POST", "/v1/withdrawals/{resource:path}"): _LOCK,
    ("GET", "/v1/leases"): Rule(About.ALL_RESOURCES, (Action.READ,)),
    ("GET", "/v1/leases/{resource:path}"): Rule(About.RESOURCE, LOOK),
    ("POST", "/v1/breaks/{resource:path}"): Rule(About.RESOURCE, (Action.BREAK,), held=True),
    ("GET", "/v1/fences"): Rule(About.ALL_RESOURCES, (Action.READ,)),
    ("GET", "/v1/fences/{resource:path}"): Rule(About.RESOURCE, LOOK),
    ("POST", "/v1/fences/{resource:path}/barrier"): Rule(About.RESOURCE, (Action.BARRIER,)),
    ("POST", "/v1/fences/{resource:path}/epoch"): Rule(About.RESOURCE, (Action.EPOCH,)),
    ("GET", "/v1/rejections/stream"): _OWN,
    ("GET", "/v1/events/stream"): _OWN,
    ("GET", "/v1/rejections.csv"): _OWN,
    ("GET", "/v1/events.csv"): _OWN,
    ("GET", "/v1/rejections.ndjson"): _OWN,
    ("GET", "/v1/events.ndjson"): _OWN,
    ("GET", "/v1/rejections"): _OWN,
    ("GET", "/v1/rejections/{id}"): _OWN,
    ("GET", "/v1/events"): _OWN,
    ("GET", "/v1/events/{id}"): _OWN,
    ("GET", "/v1/incidents"): _OWN,
    ("GET", "/v1/incidents/{id}"): _OWN,
    # The record has the resource of an incident.
    ("POST", "/v1/incidents/{id}/acknowledgements"): Rule(About.BODY, (Action.BREAK,)),
    ("GET", "/v1/record/head"): _AUDIT,
    ("GET", "/v1/reports/{resource:path}"): _AUDIT,
    ("POST", "/v1/credentials"): Rule(About.BODY, (Action.CREDENTIALS,)),
    ("POST", "/v1/sts"): _PUBLIC,  # the proof of the caller is in the body
    ("POST", "/"): _PUBLIC,
    ("POST", "/v1/sequencers/check"): Rule(About.BODY, LOOK),
    ("POST", "/v1/transaction"): Rule(About.BODY, (Action.WRITE,)),
    ("GET", "/v1/webhooks"): _AUDIT,
    ("POST", "/v1/webhooks/{name}/test"): _ADMINISTER,
    ("GET", "/v1/config"): _ADMINISTER,
    ("POST", "/v1/config/reload"): _ADMINISTER,
    ("GET", "/v1/metrics"): _CALLERS,
    ("GET", "/metrics"): _CALLERS,
    ("HEAD", "/metrics"): _CALLERS,
    ("GET", "/v1/live"): _PUBLIC,
    ("GET", "/livez"): _PUBLIC,
    ("HEAD", "/livez"): _PUBLIC,
    ("GET", "/v1/health"): _PUBLIC,
    ("GET", "/healthz"): _PUBLIC,
    ("HEAD", "/healthz"): _PUBLIC,
    ("GET", "/v1/ready"): _PUBLIC,
    ("GET", "/readyz"): _PUBLIC,
    ("HEAD", "/readyz"): _PUBLIC,
    ("GET", "/v1/openapi.json"): _PUBLIC,
    ("HEAD", "/v1/openapi.json"): _PUBLIC,
    ("GET", "/v1/docs"): _PUBLIC,
    ("HEAD", "/v1/docs"): _PUBLIC,
}


def _is_denied(rule: Rule, principal: Principal) -> bool:
    """Return whether a rule about no single resource denies its route to a caller."""
    rights = principal.rights
    if rule.about is About.ALL_RESOURCES:
        return not any(rights.over(action, EVERYTHING) for action in rule.actions)
    # Entries of anonymous callers belong to no one caller.
    if rule.about is About.EVERYTHING or (rule.about is About.OWN_ENTRIES and principal.is_anonymous):
        return not any(map(rights.anywhere, rule.actions))
    return False


def rules_of(route: BaseRoute) -> dict[str, Rule]:
    """Return the rule of each method of a route. Raises ``KeyError`` for a route without one."""
    assert isinstance(route, Route)
    return {method: RULES[method, route.path] for method in route.methods or ()}


class ApiAuthorisation(Authorisation):
    """The checks of the fencing API."""

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
        self, request: Request, principal: Principal, actions: Iterable[Action], on: str, resource: str
    ) -> Exception:
        """Record a denial, and return its error. ``on`` a resource or a pattern, named in ``resource``."""
        action = next(iter(actions))
        missing = Missing(action, on, resource, nearest(principal.rights, action, None, resource))
        return await self._refuse(missing, attempt(request, principal, FencingHeaders()))


class Authorised:
    """ASGI middleware around one route: it proves the caller, and checks the rule of the route."""

    def __init__(
        self, app: ASGIApp, rules: dict[str, Rule], caller: Authenticate, authorisation: ApiAuthorisation
    ) -> None:
        self._app, self._rules, self._caller, self._authorisation = app, rules, caller, authorisation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rule = self._rules.get(scope["method"])
        if rule is not None and rule.about not in (About.PUBLIC, About.CALLERS):
            await self._check(Request(scope), rule)
        await self._app(scope, receive, send)

    async def _check(self, request: Request, rule: Rule) -> None:
        principal, authorisation = self._caller(request), self._authorisation
        match rule.about:
            case About.RESOURCE:
                name = canonical(request.path_params["resource"])
                await authorisation.on(request, principal, rule.actions, name, held=rule.held)
            case About.BODY if not any(map(principal.rights.have, rule.actions)):
                raise await authorisation.denied(request, principal, rule.actions, "any resource", EVERYTHING)
            case About.ALL_RESOURCES if _is_denied(rule, principal):
                raise await authorisation.denied(
                    request, principal, rule.actions, f"resources {EVERYTHING}", EVERYTHING
                )
            case About.EVERYTHING | About.OWN_ENTRIES if _is_denied(rule, principal):
                raise await authorisation.denied(request, principal, rule.actions, "everything", EVERYTHING)
