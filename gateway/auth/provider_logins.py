"""Logins of people at an issuer: the authorization code flow (OpenID Connect Core 3.1) with PKCE (RFC 7636)."""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus, urlencode

from gateway.auth import login_cookies
from gateway.auth.identity_tokens import LOG_IN_AGAIN, Identity
from gateway.auth.issuers import Admit, IssuerFailed, Issuers, PacedFetch, ask
from gateway.auth.login_cookies import Attempt, Session, Terms
from gateway.auth.principal import Principal
from gateway.config.access import Login
from gateway.config.sections import browser_address
from gateway.errors import Forbidden, RequestMalformed, Unauthenticated, Unavailable
from gateway.observe.events import Observe, ServiceUnreachable

LOGIN, CALLBACK = "/ui/login", "/callback"

TIMEOUT = 10.0
"""Seconds for redeeming a code, or for the addresses of an issuer."""

_MOST_AT_ONCE = 8
"""Codes redeemed at the same time at one issuer. A stranger can send any number of wrong ones."""
_LARGEST = 64 * 1024
_KEPT = 3600.0  # seconds after which the addresses of an issuer are fetched again
_LONGEST_CODE = 4096
_LONGEST_SAID = 200

_ANSWERS = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED)
_KNOWN = ("code", "state", "iss", "error", "error_description")
_AGAIN = "Log in again, and keep this browser."


@dataclass(frozen=True, slots=True)
class Provider:
    """An issuer at which people log in, and come back from to the gateway's ``public_address``.

    ``authorities``: the file with the certificates that the issuer has to show the gateway.
    """

    terms: Terms
    login: Login
    public_address: str
    authorities: Path | None = None

    @property
    def lifetime(self) -> timedelta:
        """Return that of sessions."""
        return timedelta(seconds=self.login.session)

    @property
    def name(self) -> str:
        return self.terms.name

    @property
    def path(self) -> str:
        """Return the path at which a login begins. The issuer sends people back to the path below it."""
        return f"{LOGIN}/{self.name}"

    @property
    def returning(self) -> str:
        """Return the address to which the issuer sends people back, to the letter."""
        return f"{self.public_address}{self.path}{CALLBACK}"


@dataclass(frozen=True, slots=True)
class LoggedIn:
    """A person who has logged in: the caller, and the cookie of the session."""

    caller: Principal
    session: str = field(repr=False)
    lifetime: timedelta


class ProviderLogins:
    """All issuers at which people log in to the page. ``providers`` has them by name, in the order of their buttons.

    ``signing_keys``: the first one signs cookies, all of them prove. ``groups``: those that rules name. A session keeps
    no others, so that it fits into a cookie. ``admit`` gives a caller its rights.
    """

    def __init__(
        self,
        providers: Iterable[Provider],
        issuers: Issuers,
        admit: Admit,
        signing_keys: Sequence[str],
        groups: Iterable[str],
        observe: Observe,
    ) -> None:
        self.providers = {one.name: one for one in providers}
        self._issuers, self._admit, self._observe = issuers, admit, observe
        self._signing_keys, self._groups = tuple(signing_keys), frozenset(groups)
        # Each issuer has its own of these, so that logins at one do not wait for another that is down.
        self._asking = {name: asyncio.Semaphore(_MOST_AT_ONCE) for name in self.providers}
        self._discovery = {name: PacedFetch(partial(self._discover, one)) for name, one in self.providers.items()}
        self._known: dict[str, tuple[float, tuple[str, str]]] = {}

    async def begin(self, name: str, following: str, now: datetime) -> tuple[str, str]:
        """Return the address at the issuer to which a browser goes, and the cookie that it comes back with.

        Raises ``Unavailable`` without the addresses of the issuer.
        """
        provider = self.providers[name]
        url, _ = await self._addresses(provider)
        unique = secrets.token_urlsafe(32)
        attempt, cookie = login_cookies.begin(provider.terms, following, unique, now, self._signing_keys[0])
        challenge = hashlib.sha256(attempt.verifier.encode()).digest()
        asked = {
            "response_type": "code",
            "client_id": provider.terms.client_id,
            "redirect_uri": provider.returning,
            "scope": " ".join(provider.login.scopes),
            "state": attempt.state,
            "nonce": attempt.nonce,
            "code_challenge": base64.urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(asked)}", cookie

    def resume(self, name: str, cookie: str, state: str, now: datetime) -> Attempt:
        """Return the login that this browser has begun, and that ``state`` is of. Raises ``RequestMalformed``."""
        attempt = login_cookies.resume(cookie, self.providers[name].terms, now, self._signing_keys)
        if attempt is None or not hmac.compare_digest(attempt.state.encode(), state.encode("utf-8", "replace")):
            raise RequestMalformed(
                "This browser has not begun such a login, or more than ten minutes ago.", advice=_AGAIN
            )
        return attempt

    async def finish(self, name: str, attempt: Attempt, answer: Sequence[tuple[str, str]], now: datetime) -> LoggedIn:
        """Log in the person for whom the issuer answers. ``answer``: the parameters with which the browser came back.

        Raises ``Unauthenticated``, ``Forbidden``, ``RequestMalformed`` and ``Unavailable``, which say what is wrong.
        """
        provider = self.providers[name]
        code = _code(provider, answer)
        token = await self._redeem(provider, code, attempt.verifier)
        identity = await self._issuers.identify_login(name, token.encode("utf-8", "replace"), attempt.nonce)
        groups = tuple(group for group in identity.groups if group in self._groups)
        session = Session(identity.caller, groups, now)
        return LoggedIn(
            self._principal(session, provider),
            login_cookies.issue(session, provider.terms, self._signing_keys[0]),
            provider.lifetime,
        )

    def viewer(self, cookie: str, now: datetime) -> Principal | None:
        """Return the caller of a session; None if it has ended at ``now``, or is no session of a login at an issuer."""
        provider = self.providers.get(login_cookies.alleged_issuer(cookie) or "")
        if provider is None:
            return None
        session = login_cookies.session_of(cookie, provider.terms, self._signing_keys)
        if session is None or now >= session.since + provider.lifetime:
            return None
        return self._principal(session, provider)

    def _principal(self, session: Session, provider: Provider) -> Principal:
        identity = Identity(session.caller, session.groups, {}, session.since + provider.lifetime)
        return replace(self._admit(identity), claims=None)

    async def _redeem(self, provider: Provider, code: str, verifier: str) -> str:
        """Return the ID token for a code. Raises ``Unauthenticated`` and ``Unavailable``."""
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": provider.returning,
            "code_verifier": verifier,
        }
        headers = {}
        if (secret := provider.login.client_secret) is None:
            form["client_id"] = provider.terms.client_id
        else:
            pair = f"{quote_plus(provider.terms.client_id)}:{quote_plus(secret.get_secret_value())}"
            headers["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        _, url = await self._addresses(provider)
        with self._confirming(provider):
            status, found = await self._ask(provider, "POST", url, headers, form)
            refused = found.get("error")
            if status != HTTPStatus.OK and not refused:
                raise IssuerFailed(f"it answers with {status}, and without an error")
        if refused:
            if refused != "invalid_grant":  # any stranger can send a wrong code
                self._observe(ServiceUnreachable("issuer", f"{provider.name}: it refuses logins: {_bounded(refused)}"))
            raise Unauthenticated(
                f"{provider.name} does not confirm the login: {_bounded(refused)}.", advice=LOG_IN_AGAIN
            )
        token = found.get("id_token")
        if not isinstance(token, str):
            raise Unauthenticated(f"{provider.name} sent no ID token.", advice=LOG_IN_AGAIN)
        return token

    async def _addresses(self, provider: Provider) -> tuple[str, str]:
        """Return the addresses of the issuer: for browsers that log in, and for codes. Raises ``Unavailable``.

        Known ones stay good until the issuer publishes others.
        """
        found, known = self._known.get(provider.name, (float("-inf"), None))
        discovery = self._discovery[provider.name]
        if asyncio.get_running_loop().time() - found > _KEPT and (known is None or not discovery.under_way):
            await discovery.make()
            _, known = self._known.get(provider.name, (found, None))
        if known is None:
            raise _unavailable(provider)
        return known

    async def _discover(self, provider: Provider) -> None:
        """Fetch the addresses of the issuer. A failure leaves the known ones, and tells the operator."""
        now = asyncio.get_running_loop().time()
        with suppress(Unavailable), self._confirming(provider):
            url = f"{provider.terms.issuer.rstrip('/')}/.well-known/openid-configuration"
            status, found = await self._ask(provider, "GET", url, {}, None)
            if status != HTTPStatus.OK or found.get("issuer") != provider.terms.issuer:
                raise IssuerFailed(f"{url} is not its configuration")
            try:
                # The client's secret goes to the second one, so that it has to be as safe as the first.
                known = (
                    browser_address(str(found.get("authorization_endpoint"))),
                    browser_address(str(found.get("token_endpoint"))),
                )
            except ValueError as error:
                raise IssuerFailed(f"an address in its configuration {error}") from error
            self._known[provider.name] = now, known

    async def _ask(
        self, provider: Provider, method: str, url: str, headers: Mapping[str, str], form: Mapping[str, str] | None
    ) -> tuple[int, dict[str, Any]]:
        """Return the answer of an issuer: its status, and a JSON object. Raises ``IssuerFailed``."""
        try:
            async with asyncio.timeout(TIMEOUT), self._asking[provider.name]:
                status, content = await ask(
                    *(method, url, self._observe),
                    headers=headers,
                    form=form,
                    authorities=provider.authorities,
                    seconds=TIMEOUT,
                    largest=_LARGEST,
                )
        except TimeoutError:
            raise IssuerFailed(f"it does not answer within {TIMEOUT:g} seconds") from None
        if status not in _ANSWERS:
            raise IssuerFailed(f"it answers with {status}")
        return status, _object(content)

    @contextmanager
    def _confirming(self, provider: Provider) -> Iterator[None]:
        """Tell the operator of an issuer that fails, and the person that it does."""
        try:
            yield
        except IssuerFailed as error:
            self._observe(ServiceUnreachable("issuer", f"{provider.name}: {error}"))
            raise _unavailable(provider) from None


def _unavailable(provider: Provider) -> Unavailable:
    return Unavailable(f"{provider.name} cannot confirm the login at the moment.", advice="Log in again in a moment.")


def _code(provider: Provider, answer: Sequence[tuple[str, str]]) -> str:
    """Return the code in the answer of an issuer. Raises what the answer says instead."""
    known = [(name, value) for name, value in answer if name in _KNOWN]
    given = dict(known)
    if len(given) != len(known):
        raise RequestMalformed(f"The answer of {provider.name} has a parameter twice.", advice=_AGAIN)
    if given.get("iss", provider.terms.issuer) != provider.terms.issuer:
        raise Unauthenticated("The answer is of another issuer than the login.", advice=LOG_IN_AGAIN)
    if error := given.get("error"):
        said = _bounded(error)
        if described := given.get("error_description"):
            said += f" ({_bounded(described)})"
        raise Forbidden(f"{provider.name} has not logged you in: {said}.", advice="Log in again, or ask there.")
    code = given.get("code", "")
    if not 0 < len(code) <= _LONGEST_CODE:
        raise RequestMalformed(f"The answer of {provider.name} has no code.", advice=_AGAIN)
    return code


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IssuerFailed("its answer is not JSON") from error
    if not isinstance(found, dict):
        raise IssuerFailed("its answer is not a JSON object")
    return found


def _bounded(said: object) -> str:
    text = str(said)
    return text if len(text) <= _LONGEST_SAID else f"{text[:_LONGEST_SAID]}…"
