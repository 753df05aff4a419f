"""Access to the pages: the login, sessions, and the gate before all of ``/ui/`` but the login and its static files.

Logins at an issuer have a way there and a way back. ``gateway.auth.provider_logins`` decides about both.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway import budget
from gateway.auth.callers import Callers
from gateway.auth.login_cookies import LIFETIME, LONGEST_ATTEMPT, Attempt
from gateway.auth.principal import Principal
from gateway.auth.provider_logins import CALLBACK, LOGIN, Provider, ProviderLogins
from gateway.errors import BodyTooLarge, GatewayError, RequestMalformed, Unauthenticated, Unavailable
from gateway.fencing.record import ANONYMOUS
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import Head
from gateway.http.middleware import problem
from gateway.http.origins import SAFE, Sender, sender
from gateway.web.rendering import PREFIX, PROBLEM, THEME_COOKIE, THEMES, Pages, address, wants_json

Clock: TypeAlias = Callable[[], datetime]
"""Returns an aware moment. It ends sessions and decides nothing else."""

COOKIE = "gateway_session"
LOGOUT, THEME = "/ui/logout", "/ui/theme"
HOME = "/ui/"

_MAX_FORM = 16 * 1024
_MAX_FIELDS = 8
_A_YEAR = 365 * 24 * 3600

_FOREIGN_FORM = "The form was not sent from a page of this gateway."
_FOR_PROGRAMS = "Programs read the record at /v1/events, with an API key as 'Authorization: Bearer …'."
_NO_AUDIT = "This caller may not read the record."


class LoginGate:
    """Plain ASGI around the pages. Puts the viewer, a ``Principal``, into ``scope["state"]["viewer"]``.

    An unknown viewer is sent to the login. A caller that may not read the record gets 403. Forms are accepted from the
    gateway's own pages only.
    """

    def __init__(self, app: ASGIApp, keys: Callers, logins: ProviderLogins, clock: Clock, pages: Pages) -> None:
        self._app = app
        self._keys = keys
        self._logins = logins
        begun = [provider.path for provider in logins.providers.values()]
        self._open = {"/", LOGIN, LOGOUT, THEME, *begun, *(f"{path}{CALLBACK}" for path in begun)}
        self._clock = clock
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        state = scope.setdefault("state", {})
        viewer, state["in_session"] = _viewer(self._keys, self._logins, request, self._clock())
        state["offers_login"] = self._keys.offers_login or bool(self._logins.providers)
        if viewer is not None and viewer.audits:
            state["viewer"] = viewer
            budget.serve(state, viewer.name)
        await self._answering(request, viewer)(scope, receive, send)

    def _answering(self, request: Request, viewer: Principal | None) -> ASGIApp:
        # Not ``request.url``, which contains a Host header that the client chose.
        path: str = request.scope["path"]
        # The app has refused pages of other origins. A form comes from a page, so it must name this origin.
        if request.method not in SAFE and sender(Head.of(request.scope).headers) is not Sender.OWN:
            return self._pages.render(request, "refused.html", 403, message=_FOREIGN_FORM, caller=None)
        if path in self._open or path.startswith(PREFIX):
            return self._app
        # Public objects are a grant for anonymous callers, too. A viewer without a session has still to log in.
        if viewer is None or (viewer.name == ANONYMOUS and not viewer.audits):
            if wants_json(request):
                error = Unauthenticated("The pages are for people with a session.", advice=_FOR_PROGRAMS)
                return JSONResponse(problem(error), error.status, media_type=PROBLEM)
            if _is_withheld(request):
                return self._pages.render(request, "arrival.html", again=_target(request))
            return _to_login(request)
        if not viewer.audits:
            return self._pages.render(request, "refused.html", 403, message=_NO_AUDIT, caller=viewer.name)
        return self._app


def routes(keys: Callers, logins: ProviderLogins, clock: Clock, pages: Pages, bodies: BodyReader) -> list[Route]:
    async def show_login(request: Request) -> Response:
        return login_page(request, pages, logins, safe(request.query_params.get("next")))

    async def log_in(request: Request) -> Response:
        form = await read_form(request, bodies)
        following = safe(form.get("next"))
        try:
            caller, session = keys.log_in(form.get("api_key", "").strip(), clock())
        except Unauthenticated:
            problem = "This is not an API key of any caller."
            return login_page(request, pages, logins, following, problem, 401, wrong_key=True)
        if not caller.audits:
            return login_page(request, pages, logins, following, lacks_audit(caller), 403)
        answer = RedirectResponse(following, 303)
        set_session(answer, session, LIFETIME, secure=_is_secure(request))
        return answer

    async def log_out(_: Request) -> Response:
        answer = RedirectResponse(LOGIN, 303)
        answer.delete_cookie(COOKIE, path=HOME, httponly=True, samesite="strict")
        return answer

    async def choose_theme(request: Request) -> Response:
        form = await read_form(request, bodies)
        answer = RedirectResponse(safe(form.get("next")), 303)
        theme = form.get("theme", "")
        if theme in THEMES:
            answer.set_cookie(THEME_COOKIE, theme, max_age=_A_YEAR, path=HOME, samesite="strict")
        return answer

    return [
        Route(LOGIN, show_login, methods=["GET"]),
        Route(LOGIN, log_in, methods=["POST"]),
        Route(LOGOUT, log_out, methods=["POST"]),
        Route(THEME, choose_theme, methods=["POST"]),
    ]


def login_page(
    request: Request,
    pages: Pages,
    logins: ProviderLogins,
    following: str,
    problem: str | None = None,
    status: int = 200,
    advice: str | None = None,
    *,
    wrong_key: bool = False,
) -> Response:
    """Return the login. ``following``: the page that it leads to. ``problem``: why the last one has failed."""
    to = None if following == HOME else following
    # Under the public address, because the issuer sends the browser back there, and it must have the cookie then.
    buttons = [(one.name, address(f"{one.public_address}{one.path}", next=to)) for one in logins.providers.values()]
    told = {"next": following, "problem": problem, "advice": advice, "providers": buttons, "wrong_key": wrong_key}
    return pages.render(request, "login.html", status, here=address(LOGIN, next=to), **told)


def lacks_audit(caller: Principal) -> str:
    return f"The caller {caller.name} may not read the record. It lacks the grant audit."


def set_session(answer: Response, session: str, lifetime: timedelta, *, secure: bool) -> None:
    seconds = int(lifetime.total_seconds())
    answer.set_cookie(COOKIE, session, max_age=seconds, path=HOME, secure=secure, httponly=True, samesite="strict")


def _viewer(keys: Callers, logins: ProviderLogins, request: Request, now: datetime) -> tuple[Principal | None, bool]:
    """Return the caller of the session, of the certificate, or the anonymous one, and if it has a session."""
    session = request.cookies.get(COOKIE)
    try:
        logged_in = logins.viewer(session or "", now) or keys.of_session(session, now)
        if logged_in is not None:
            return logged_in, True
        return keys.by_bearer((), Head.of(request.scope).certificate), False
    except Unauthenticated:
        return None, False


def _to_login(request: Request) -> Response:
    """Redirect to the login, and from there back. A request by a script redirects the whole page."""
    if request.headers.get("hx-request"):
        asked = _split(request.headers.get("hx-current-url", ""))
        back = asked.path + (f"?{asked.query}" if asked.query else "")
        return Response(status_code=401, headers={"HX-Redirect": address(LOGIN, next=safe(back))})
    back = _target(request)
    return RedirectResponse(address(LOGIN, next=None if back == HOME else back), 303)


def _is_withheld(request: Request) -> bool:
    """Return whether the browser may have withheld a session because of a link on another site (SameSite=Strict).

    A page of the gateway then repeats the request, and the browser sends the session. This is safe, because the request
    only reads, and the page cannot be framed.
    """
    fetch = request.headers.get
    return (
        COOKIE not in request.cookies
        and fetch("sec-fetch-site") in ("cross-site", "same-site")
        and fetch("sec-fetch-mode") == "navigate"
        and request.method == "GET"
    )


def _target(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def _is_secure(request: Request) -> bool:
    """Return whether the browser uses https, to the gateway or to a proxy in front of it."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _split(text: str) -> SplitResult:
    """Split the address in a header. An invalid one counts as empty."""
    try:
        return urlsplit(text)
    except ValueError:
        return urlsplit("")


def safe(following: str | None) -> str:
    """Return the page to go on to. Any address outside ``/ui/`` becomes the overview."""
    if not following or not following.startswith(HOME) or "\\" in following or not following.isprintable():
        return HOME
    # A browser resolves such segments, encoded or not, and would leave ``/ui/``, perhaps for an object in a bucket.
    segments = unquote(following.partition("?")[0]).split("/")
    return HOME if "." in segments or ".." in segments else following


async def read_form(request: Request, bodies: BodyReader) -> dict[str, str]:
    """Return the fields of a small form. Its sender may be unknown."""
    try:
        content = await bodies.of(request.scope, request.receive).whole(_MAX_FORM)
    except BodyTooLarge:
        raise RequestMalformed("The form is too large.") from None
    except ClientGone:
        raise RequestMalformed("The form did not arrive.") from None
    try:
        return dict(parse_qsl(content.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    except ValueError as error:
        raise RequestMalformed("The form cannot be read.") from error


POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": browsers would then send "Origin: null" with forms, and the gateway checks their origin.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer."""


class SecurityHeaders:
    """ASGI middleware that adds ``HEADERS``. An answer's own headers win, so static files may be cached."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, protected)


ATTEMPT_COOKIE = "gateway_login"


def provider_routes(logins: ProviderLogins, clock: Clock, pages: Pages) -> list[Route]:
    """Build two routes for each issuer: the beginning of a login, and the way back from the issuer."""

    # A link, not a form: ``form-action`` of the policy forbids that a form leads to another site.
    async def begin(provider: Provider, request: Request) -> Response:
        following = safe(request.query_params.get("next"))
        if sender(Head.of(request.scope).headers) is Sender.FOREIGN:
            return RedirectResponse(address(LOGIN, next=following), 303)
        try:
            there, cookie = await logins.begin(provider.name, following, clock())
        except Unavailable as error:
            return login_page(request, pages, logins, following, error.message, error.status, error.advice)
        answer = RedirectResponse(there, 303)
        # Not Strict: the browser sends it on its way back from another site.
        answer.set_cookie(
            ATTEMPT_COOKIE,
            cookie,
            max_age=int(LONGEST_ATTEMPT.total_seconds()),
            path=provider.path,
            secure=_is_reached_securely(provider),
            httponly=True,
            samesite="lax",
        )
        return answer

    async def come_back(provider: Provider, request: Request) -> Response:
        now, state = clock(), request.query_params.getlist("state")
        cookie = request.cookies.get(ATTEMPT_COOKIE, "")
        try:
            attempt = logins.resume(provider.name, cookie, state[0] if len(state) == 1 else "", now)
        except GatewayError as error:
            # The cookie stays: another site has made up this request, and the login may still be under way.
            return login_page(request, pages, logins, safe(None), error.message, error.status, error.advice)
        answer = await finish(provider, request, safe(attempt.following), attempt)
        answer.delete_cookie(
            ATTEMPT_COOKIE, path=provider.path, secure=_is_reached_securely(provider), httponly=True, samesite="lax"
        )
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
        set_session(answer, proven.session, proven.lifetime, secure=_is_reached_securely(provider))
        return answer

    return [
        route
        for one in logins.providers.values()
        for route in (
            Route(one.path, partial(begin, one), methods=["GET"]),
            Route(f"{one.path}{CALLBACK}", partial(come_back, one), methods=["GET"]),
        )
    ]


def _is_reached_securely(provider: Provider) -> bool:
    return provider.public_address.startswith("https://")
