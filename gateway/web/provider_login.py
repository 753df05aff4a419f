"""Logins at an issuer: the way there, and the way back. ``gateway.auth.provider_logins`` decides about both."""

from functools import partial

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from gateway.auth.login_cookies import LONGEST_ATTEMPT, Attempt
from gateway.auth.provider_logins import CALLBACK, LOGIN, Provider, ProviderLogins
from gateway.errors import GatewayError
from gateway.http.head import Head
from gateway.http.origins import Sender, sender
from gateway.web.login import Clock, lacks_audit, login_page, safe, set_session
from gateway.web.rendering import Pages, address

COOKIE = "gateway_login"


def routes(logins: ProviderLogins, clock: Clock, pages: Pages) -> list[Route]:
    """Build two routes for each issuer: the beginning of a login, and the way back from the issuer."""

    # A link, not a form: ``form-action`` of the policy forbids that a form leads to another site.
    async def begin(provider: Provider, request: Request) -> Response:
        following = safe(request.query_params.get("next"))
        if sender(Head.of(request.scope).headers) is Sender.FOREIGN:
            return RedirectResponse(address(LOGIN, next=following), 303)
        there, cookie = logins.begin(provider.name, following, clock())
        answer = RedirectResponse(there, 303)
        # Not Strict: the browser sends it on its way back from another site.
        answer.set_cookie(
            COOKIE,
            cookie,
            max_age=int(LONGEST_ATTEMPT.total_seconds()),
            path=provider.path,
            secure=_is_secure(provider),
            httponly=True,
            samesite="lax",
        )
        return answer

    async def come_back(provider: Provider, request: Request) -> Response:
        now, state = clock(), request.query_params.getlist("state")
        cookie = request.cookies.get(COOKIE, "")
        try:
            attempt = logins.resume(provider.name, cookie, state[0] if len(state) == 1 else "", now)
        except GatewayError as error:
            # The cookie stays: another site has made up this request, and the login may still be under way.
            return login_page(request, pages, logins, safe(None), error.message, error.status, error.advice)
        answer = await finish(provider, request, safe(attempt.following), attempt)
        answer.delete_cookie(COOKIE, path=provider.path, secure=_is_secure(provider), httponly=True, samesite="lax")
        return answer

    async def finish(provider: Provider, request: Request, following: str, attempt: Attempt) -> Response:
        try:
            proven = await logins.finish(provider.name, attempt, request.query_params.multi_items(), clock())
        except GatewayError as error:
            return login_page(request, pages, logins, following, error.message, error.status, error.advice)
        request.state.caller = proven.caller.name
        if not proven.caller.audits:
            return login_page(request, pages, logins, following, lacks_audit(proven.caller), 403)
        # A redirect would still come from the issuer's site, and without the session, which is Strict.
        answer = pages.render(request, "arrival.html", here=following, again=following)
        set_session(answer, proven.session, proven.lifetime, secure=_is_secure(provider))
        return answer

    return [
        route
        for one in logins.providers.values()
        for route in (
            Route(one.path, partial(begin, one), methods=["GET"]),
            Route(f"{one.path}{CALLBACK}", partial(come_back, one), methods=["GET"]),
        )
    ]


def _is_secure(provider: Provider) -> bool:
    return provider.public_address.startswith("https://")
