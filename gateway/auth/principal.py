"""The proven caller of a request: the names in its certificate, its role of the database, its rights and its scope."""

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from gateway.auth.grants import EVERYTHING, NO_RIGHTS, Action, Rights
from gateway.errors import RequestMalformed, StoreError
from gateway.fencing import record
from gateway.fencing.record import ANONYMOUS
from gateway.fencing.resource import check_pattern, covers
from gateway.fencing.sequencer import Sequencer
from gateway.fencing.token import Token

COMMON_NAME = "commonName"
_ALTERNATIVE = frozenset(("URI", "DNS"))
"""Kinds of alternative names, as OpenSSL prints them."""


class ClientCertificate(NamedTuple):
    """A verified certificate. ``names``: ``URI:…``, ``DNS:…`` and ``CN:…``. ``expires`` is aware.

    ``digest`` is the SHA-256 of the certificate: no two have the same one.
    """

    names: frozenset[str]
    expires: datetime
    digest: bytes

    @classmethod
    def of(cls, decoded: Mapping[str, Any], encoded: bytes) -> "ClientCertificate":
        """Return a certificate from what Python's ``getpeercert`` returns in both of its forms."""
        alternatives = decoded.get("subjectAltName", ())
        names = {f"{kind}:{value}" for kind, value in alternatives if kind in _ALTERNATIVE}
        common = [value for part in decoded.get("subject", ()) for kind, value in part if kind == COMMON_NAME]
        if len(common) == 1:  # of several, none is the name of the subject
            names.add(f"CN:{common[0]}")
        expires = datetime.fromtimestamp(ssl.cert_time_to_seconds(decoded["notAfter"]), UTC)
        return cls(frozenset(names), expires, sha256(encoded).digest())


def check_name(name: str) -> str:
    """Return the name of a certificate as the configuration has it. Raises ``ValueError`` for any other form."""
    kind, _, value = name.partition(":")
    if kind not in ("URI", "DNS", "CN") or not value:
        raise ValueError(f"{name} must be URI:spiffe://…, DNS:… or CN:…, as in 'openssl x509 -ext subjectAltName'")
    if value != value.strip() or not value.isprintable():
        raise ValueError(f"{name!a} must not begin or end with a space, nor contain invisible characters")
    if kind != "CN" and "*" in value:
        raise ValueError(f"{name} has a *, but names are compared as they are; write the whole name")
    if kind == "URI" and not urlsplit(value).scheme:
        raise ValueError(f"{name} must have a scheme, such as URI:spiffe://shop/worker")
    return name


OWN = "none"
"""The gateway's own role, as in SET ROLE NONE."""

Claims: TypeAlias = Mapping[str, object]


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


@dataclass(frozen=True, slots=True)
class FencedScope:
    """The limits of fenced credentials: they write the resources of ``pattern``, with ``token`` and no other.

    They read these resources, and the ones that the patterns ``read`` cover. ``EVERYTHING`` among these opens every
    bucket.

    ``pattern`` is a resource name in canonical form. A segment ``*`` stands for any one segment, a last ``**`` for all
    remaining ones. Anything else raises ``ResourceMalformed``. ``sequencer`` proves the token, for the one resource
    that it names.
    """

    pattern: str
    token: Token
    holder: str | None = None
    sequencer: Sequencer | None = None
    read: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_pattern(self.pattern)
        for pattern in self.read:
            check_pattern(pattern)
        if self.sequencer is not None and self.sequencer.token != self.token:
            raise RequestMalformed(
                "The sequencer is for another token than the credentials.",
                advice="Send the token that the sequencer names.",
            )

    @property
    def plain(self) -> bool:
        """Return whether the pattern is the name of one resource."""
        return "*" not in self.pattern

    def covers(self, resource: str) -> bool:
        return covers(self.pattern, resource)

    @property
    def reads_everything(self) -> bool:
        """Return whether all resources of all buckets may be read."""
        return EVERYTHING in self.readable

    @property
    def readable(self) -> tuple[str, ...]:
        return (self.pattern, *self.read)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Proof:
    """The reason to believe a caller: a certificate or an identity token, until ``expires``, which is aware.

    ``clock`` returns an aware moment. ``stands`` returns whether nothing that the proof rests on was withdrawn.
    """

    expires: datetime
    clock: Callable[[], datetime]
    stands: Callable[[], bool] = _always

    def holds(self) -> bool:
        """Return whether it still proves the caller."""
        return self.stands() and self.clock() < self.expires


class Use:
    """The uses of the key that has proven a caller. Without a key of the configuration, none is noted."""

    __slots__ = ()

    def note(self) -> None:
        """Note one."""


NO_USE = Use()


@dataclass(frozen=True, slots=True)
class Principal:
    """A proven caller. ``name`` is the configured name, or ``anonymous``.

    ``rights``: what it may do at all. ``scope`` binds the writes of fenced credentials in addition; None if the caller
    presents tokens itself. ``role``: the role of the database under which its requests run; None if it has none.
    ``claims``: those of the identity token that it has shown, if any. ``groups``: those that it belongs to.
    ``proof``: what has proven it, if that can end. ``expires``: when its temporary keys end, aware.
    ``use``: of its key.
    """

    name: str
    rights: Rights = NO_RIGHTS
    scope: FencedScope | None = None
    role: str | None = OWN
    claims: Mapping[str, object] | None = None
    groups: tuple[str, ...] = ()
    proof: Proof | None = field(default=None, compare=False)
    expires: datetime | None = None
    use: Use = field(default=NO_USE, compare=False, repr=False)

    @property
    def is_anonymous(self) -> bool:
        """Return whether the request carried no credentials. No configured caller has this name."""
        return self.name == record.ANONYMOUS

    @property
    def audits(self) -> bool:
        """Return whether it may read the whole record. Fenced credentials are for writing."""
        return self.scope is None and self.rights.anywhere(Action.AUDIT)


SecretOf: TypeAlias = Callable[[str, str | None], tuple[Principal, str] | None]
"""Returns the owner and the secret of an access key id and the session token beside it, if any.

None means that the id is unknown. Raises ``StoreError`` (InvalidToken) if the two do not belong together."""


def owner(access_key_id: str, session_token: str | None, secret_of: SecretOf, now: datetime) -> tuple[Principal, str]:
    """Return the owner of an access key and its secret. ``now`` is aware. Raises ``StoreError`` for invalid keys."""
    found = secret_of(access_key_id, session_token)
    if found is None:
        raise StoreError.known("InvalidAccessKeyId")
    ends = found[0].expires
    if ends is not None and ends <= now:
        raise StoreError.known("ExpiredToken", "Request new temporary keys.")
    return found


def shown_to(principal: Principal) -> str | None:
    """Return the only caller whose entries this principal may see (``Filters.shown_to``); None if it may see all."""
    return None if principal.audits else principal.name
