"""Roles of the database: under which one the requests of a caller run. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

from gateway.fencing.record import ANONYMOUS

OWN = "none"
"""The gateway's own role, as in SET ROLE NONE."""

Claims: TypeAlias = Mapping[str, object]


class RoleRule(NamedTuple):
    """A rule of ``postgres.roles``: whom it is for, and the role, or the claim that names one of ``allowed``.

    ``callers`` are names, or patterns as grants have them.
    """

    callers: tuple[str, ...]
    groups: tuple[str, ...]
    role: str | None
    claim: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()


def role_of(
    rules: Sequence[RoleRule], names: Sequence[str], groups: Sequence[str], claims: Claims | None
) -> str | None:
    """Return the role that the first matching rule gives a caller. None if rules exist and none of them matches.

    ``names``: the caller and the patterns that cover it. ``claims``: those of its token, if it has shown one.
    """
    if not rules:
        return OWN
    for rule in rules:
        if not (set(rule.callers).intersection(names) or set(rule.groups).intersection(groups)):
            continue
        if rule.role is not None:
            return rule.role
        named = claim_of(claims or {}, rule.claim)
        roles = named if isinstance(named, list) else [named]
        found = next((role for role in rule.allowed if role in roles), None)
        if found is not None:
            return found
    return None


def claim_of(claims: Claims, path: Sequence[str]) -> object:
    """Return the claim at a path of keys; None if there is none."""
    found: object = claims
    for key in path:
        if not isinstance(found, Mapping):
            return None
        found = found.get(key)
    return found


def shown_claims(role: str, caller: str, claims: Claims | None) -> str:
    """Return the claims that policies of the database see, as JSON. ``role`` is among them, as with PostgREST.

    A caller without a token has its name as ``sub``.
    """
    own: Claims = {} if caller == ANONYMOUS else {"sub": caller}
    return json.dumps({**(own if claims is None else claims), "role": role}, separators=(",", ":"))
