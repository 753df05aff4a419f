"""An issuer of identity tokens for tests: keys, tokens, and the address of its keys, which can be made to fail."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.integration.serving_app import served

ISSUER, AUDIENCE = "https://issuer.example", "gateway"

SigningKey = RSAKey | ECKey | OctKey


def rsa_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


def ec_key(kid: str) -> ECKey:
    return ECKey.generate_key("P-256", {"kid": kid})


def claims(subject: str = "ann", **more: Any) -> dict[str, Any]:
    """Return the claims of a good token. None leaves a claim out."""
    now = int(datetime.now(UTC).timestamp())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600}
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

    @asynccontextmanager
    async def running(self) -> AsyncIterator["Provider"]:
        app = Starlette(routes=[Route("/keys", self._serve)])
        async with served(app) as port:
            self.url = f"http://127.0.0.1:{port}/keys"
            yield self
