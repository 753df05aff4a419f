"""An issuer of identity tokens for tests: keys, tokens, and the address of its keys, which can be made to fail."""

import asyncio
import base64
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import parse_qsl, unquote_plus, urlencode

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.serving_app import served

ISSUER, AUDIENCE = "https://issuer.example", "gateway"

SigningKey = RSAKey | ECKey | OctKey


def rsa_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


def ec_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid})


def claims(subject: str = "ann", **more: Any) -> dict[str, Any]:
    """Return the claims of a good token. None leaves a claim out."""
    # Modules make tokens when they are imported, and use them at the end of a run on a slow machine.
    now = int(datetime.now(UTC).timestamp())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 7200}
    return {name: value for name, value in {**good, **more}.items() if value is not None}


def token(key: SigningKey, content: dict[str, Any], algorithm: str = "RS256", **header: Any) -> str:
    """Return a signed token. ``header``: further fields; None leaves one out."""
    fields = {"alg": algorithm, "kid": key.kid, "typ": "JWT", **header}
    shown = {name: value for name, value in fields.items() if value is not None}
    signed = f"{encoded(shown)}.{encoded(content)}"
    # Not by the library's own door, which makes no wrong tokens.
    return f"{signed}.{encoded(jws.JWSRegistry.algorithms[algorithm].sign(signed.encode(), key))}"


def encoded(value: Any) -> str:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def shared_key(secret: str) -> OctKey:
    return OctKey.import_key(secret)


class Provider:
    """Serves the public keys. ``answer`` replaces the answer; ``asked`` counts the requests."""

    def __init__(self, *keys: SigningKey) -> None:
        self.keys = list(keys)
        self.answer: Response | None = None
        self.asked: list[Request] = []
        self.url = ""

    def document(self) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()

    async def _serve(self, request: Request) -> Response:
        self.asked.append(request)
        return self.answer or Response(self.document(), media_type="application/json")

    def routes(self) -> list[Route]:
        return [Route("/keys", self._serve)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with served(Starlette(routes=self.routes())) as port:
            self.url = f"http://127.0.0.1:{port}/keys"
            yield self


class Hanging(Response):
    """An answer that does not come until it ``may``."""

    def __init__(self, status: int = 200) -> None:
        super().__init__(status_code=status)
        self.may = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.may.wait()
        await super().__call__(scope, receive, send)


CLIENT, CLIENT_SECRET = "gateway-page", "the secret of the client: 100 % & more"


class LoginProvider(Provider):
    """Logs people in, too: each browser is ``subject``'s, who consents if there is no ``refusal``.

    It is as strict about codes as a good provider. ``more`` changes claims of ID tokens, and ``make`` the token itself.
    ``token_answer`` replaces the answer to a code. ``published`` changes its configuration, which ``published_answer``
    replaces, and ``discovered`` counts the requests for it.
    ``redeemed`` has the forms with which codes came.
    """

    def __init__(self, *keys: SigningKey, secret: str | None = CLIENT_SECRET) -> None:
        super().__init__(*keys)
        self.secret = secret
        self.subject = "ann"
        self.refusal: dict[str, str] = {}
        self.more: dict[str, Any] = {}
        self.make: Callable[[dict[str, Any]], str] = lambda content: token(self.keys[0], content)
        self.token_answer: Response | None = None
        self.published: dict[str, Any] = {}
        self.published_answer: Response | None = None
        self.discovered = 0
        self.asked_to_log_in: list[dict[str, str]] = []
        self.redeemed: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self._codes: dict[str, dict[str, str]] = {}

    def login(self, **more: Any) -> dict[str, Any]:
        """Return the section ``login`` of an issuer."""
        return {"client_id": CLIENT, "client_secret": self.secret, **more}

    @property
    def issuer(self) -> str:
        """The claim iss of its tokens."""
        return self.url.removesuffix("/keys")

    async def _configuration(self, _: Request) -> Response:
        self.discovered += 1
        urls = {"authorization_endpoint": f"{self.issuer}/authorize?tenant=1", "token_endpoint": f"{self.issuer}/token"}
        return self.published_answer or JSONResponse({"issuer": self.issuer, **urls, **self.published})

    def code(self, asked: dict[str, str]) -> str:
        """Return a code, as for a person who has consented."""
        code = secrets.token_urlsafe(16)
        self._codes[code] = asked
        return code

    async def _authorize(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.asked_to_log_in.append(asked)
        answer = self.refusal or {"code": self.code(asked)}
        return RedirectResponse(
            f"{asked['redirect_uri']}?{urlencode({**answer, 'state': asked['state'], 'iss': self.issuer})}", 303
        )

    async def _token(self, request: Request) -> Response:
        form = dict(parse_qsl((await request.body()).decode()))
        self.redeemed.append(form)
        if self.token_answer is not None:
            return self.token_answer
        if self._client(request, form) != (CLIENT, self.secret):
            return JSONResponse({"error": "invalid_client"}, 401)
        asked = self._codes.pop(form["code"], {})
        challenge = encoded(hashlib.sha256(form.get("code_verifier", "").encode()).digest())
        if (asked.get("code_challenge"), asked.get("redirect_uri")) != (challenge, form["redirect_uri"]):
            return JSONResponse({"error": "invalid_grant"}, 400)
        content = claims(self.subject, **{"iss": self.issuer, "aud": CLIENT, "nonce": asked["nonce"], **self.more})
        self.tokens.append(self.make(content))
        return JSONResponse({"id_token": self.tokens[-1], "access_token": "opaque", "token_type": "Bearer"})

    def _client(self, request: Request, form: dict[str, str]) -> tuple[str, str | None]:
        scheme, _, pair = request.headers.get("authorization", "").partition(" ")
        if scheme != "Basic":
            return form.get("client_id", ""), None
        name, _, secret = base64.b64decode(pair).decode().partition(":")
        return unquote_plus(name), unquote_plus(secret)

    def routes(self) -> list[Route]:
        there = [Route("/authorize", self._authorize), Route("/token", self._token, methods=["POST"])]
        return [*super().routes(), *there, Route("/.well-known/openid-configuration", self._configuration)]
