"""Who sent a write, and how it stands on record if it is refused."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote_plus

from gateway.auth.principal import ANONYMOUS, Principal
from gateway.fencing.record import Attempt
from gateway.fencing.token import Token

_MAX_TARGET = 2048


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request, and with what. ``keyring``: whose idempotency keys it uses."""

    caller: str
    method: str
    path: str
    query: str
    client: str | None
    request_id: str
    keyring: str

    @classmethod
    def of(cls, scope: Mapping[str, Any], principal: Principal) -> Self:
        """The sender of an ASGI request. ``principal`` is who it has proved to be."""
        state = scope.get("state") or {}
        return cls(
            caller=principal.name,
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"].decode("latin-1"),
            client=state.get("client"),
            request_id=state.get("request_id", ""),
            # All who show nothing are one, and no configured caller has an empty name.
            keyring="" if principal is ANONYMOUS else principal.name,
        )

    @property
    def target(self) -> str:
        """Path and query, bounded. An API key that some clients repeat in the query does not go on record."""
        kept = [part for part in self.query.split("&") if unquote_plus(part.partition("=")[0]) != "apikey"]
        return "?".join(filter(None, (self.path, "&".join(kept))))[:_MAX_TARGET]

    def attempt(self, token: Token | None, holder: str | None, content: bytes) -> Attempt:
        """A write with this body, as it goes on record."""
        return Attempt(
            token=token,
            holder=holder,
            caller=self.caller,
            method=self.method,
            target=self.target,
            client=self.client,
            request_id=self.request_id,
            payload_size=len(content),
            payload_sha256=hashlib.sha256(content).hexdigest(),
        )
