"""Who sent a write, and how it stands on record if it is refused."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from gateway.auth.principal import ANONYMOUS, Principal
from gateway.fencing.record import Attempt
from gateway.fencing.token import Token
from gateway.http.head import Head
from gateway.record.capture import NOTHING, Capture


@dataclass(frozen=True, slots=True)
class Sender:
    """Who sent a request, and with what. ``keyring``: whose idempotency keys it uses; ``media_type``: of its body;
    ``capture``: what is to be kept of that, should it be refused.
    """

    caller: str
    method: str
    path: str
    query: str
    client: str | None
    request_id: str
    keyring: str
    media_type: str = ""
    capture: Capture = NOTHING

    @classmethod
    def of(cls, head: Head, state: Mapping[str, Any], principal: Principal, capture: Capture = NOTHING) -> Self:
        """Return the sender of a request. ``state`` is that of its ASGI scope, ``principal`` the proven caller."""
        return cls(
            caller=principal.name,
            method=head.method,
            path=head.path,
            query=head.query_string.decode("latin-1"),
            client=state.get("client"),
            request_id=state.get("request_id", ""),
            # All who show nothing are one, and no configured caller has an empty name.
            keyring="" if principal is ANONYMOUS else principal.name,
            media_type=(head.value(b"content-type") or b"").decode("latin-1"),
            capture=capture,
        )

    def target(self, table: str) -> str:
        """Path and query of a write to ``table``, without values of redacted columns."""
        return "?".join(filter(None, (self.path, self.capture.query(self.query, table))))

    def attempt(self, token: Token | None, holder: str | None, content: bytes, table: str) -> Attempt:
        """A write with this body to ``table`` (``schema.name``; of a call, the function's), as it goes on record."""
        return Attempt(
            token=token,
            holder=holder,
            caller=self.caller,
            method=self.method,
            target=self.target(table),
            client=self.client,
            request_id=self.request_id,
            payload_size=len(content),
            payload_sha256=hashlib.sha256(content).hexdigest(),
            plane="tables",
            rule=table,
            captured=self.capture.of_table(content, self.media_type, table),
        )
