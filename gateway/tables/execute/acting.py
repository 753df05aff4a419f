"""Statements of a request that run under its caller's role of the database.

Claims, the record and everything else of the fence run with the gateway's own rights.
"""

import json
from collections.abc import Mapping
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple, Self

from gateway.auth.principal import Principal, shown_claims
from gateway.db import settings
from gateway.db.database import Transaction
from gateway.http.head import Head

# Nothing in the database needs the proof of who the caller is.
_PROOFS = (b"authorization", b"apikey", b"cookie")


class Role(NamedTuple):
    """A role of the database, and what its policies and functions may ask about the request: settings by name."""

    name: str
    settings: Mapping[str, str]

    def at(self, method: str, path: str) -> Self:
        """Return it for a request to this path. Policies see it as PostgREST shows it: ``/orders``, ``/rpc/name``."""
        *_, before, name = ("", *path.split("/"))
        shown = f"/rpc/{name}" if before == "rpc" else f"/{name}"
        return self._replace(settings={**self.settings, "request.method": method, "request.path": shown})

    def holding(self, held: Mapping[str, Mapping[str, str | None]]) -> Self:
        """Return it for a write that holds these fences. Guards judge by that what its code writes."""
        return self._replace(settings={**self.settings, "fencing.held": json.dumps(held)})


class KnownRole(NamedTuple):
    """The role of all requests with one head. ``headers``: those that policies see, of one of these requests."""

    role: Role
    headers: Mapping[str, str]

    def of(self, changing: Mapping[bytes, bytes]) -> Role:
        """Return the role of one of them. ``changing``: its headers that may differ from those of the others."""
        own = {key.decode("latin-1"): value.decode("latin-1") for key, value in changing.items()}
        settings = {**self.role.settings, "request.headers": json.dumps({**self.headers, **own})}
        return self.role._replace(settings=settings)


def known_role(head: Head, principal: Principal) -> KnownRole:
    return KnownRole(role_of(head, principal), _shown(head))


def role_of(head: Head, principal: Principal) -> Role:
    name = principal.role
    assert name is not None
    role = Role(
        name,
        {
            "request.jwt.claims": shown_claims(name, principal.name, principal.claims),
            "request.headers": json.dumps(_shown(head)),
            "request.cookies": json.dumps(_cookies(head.value(b"cookie") or b"")),
        },
    )
    return role.at(head.method, head.path)


def _shown(head: Head) -> dict[str, str]:
    shown = [(key.lower(), value) for key, value in head.headers if key.lower() not in _PROOFS]
    return {key.decode("latin-1"): value.decode("latin-1") for key, value in shown}


# Browsers keep at most so many for one site. Reading 60 KB of the shortest takes a tenth of a second.
_MOST_COOKIES = 180


def _cookies(header: bytes) -> dict[str, str]:
    if header.count(b";") >= _MOST_COOKIES:
        return {}
    try:
        return {name: morsel.value for name, morsel in SimpleCookie(header.decode("latin-1")).items()}
    except CookieError:
        return {}


class Acting:
    """Whether a transaction acts under a role of the database at the moment. It begins with the gateway's own."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._role: Role | None = None

    async def as_(self, role: Role | None) -> None:
        """Act under this role. Raises ``RightMissing`` if the gateway, or the role, lacks a right for that."""
        if role is self._role:
            return
        if role is None:
            await settings.leave_role(self._transaction)
        else:
            await settings.take_role(self._transaction, role.name, role.settings)
        self._role = role

    async def restore(self) -> None:
        """Act with the gateway's own rights again, and pin the session to its settings. Code may have changed them."""
        await settings.restore_pins(self._transaction)
        self._role = None
