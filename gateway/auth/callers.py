"""The configured callers: which of them owns an API key, a session of the page, an access key id or a certificate.

To note the use of a key costs a write to memory. An API key is shown by a fingerprint. To test a guess by it takes
longer than to try the guess at a gateway.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from time import monotonic

from gateway.auth import temporary_keys
from gateway.auth.grants import Action, Grant, Rights
from gateway.auth.identity_tokens import Identity, looks_like_one
from gateway.auth.issuers import Issuers
from gateway.auth.login_cookies import caller_of, issue_session, session_key
from gateway.auth.principal import OWN, Claims, ClientCertificate, FencedScope, Principal, Proof, Use, claim_of
from gateway.auth.temporary_keys import PresentedSession, TemporaryKeys
from gateway.config.access import CallerKeys, GrantRule
from gateway.config.sections import RoleRule
from gateway.errors import Forbidden, StoreError, Unauthenticated
from gateway.fencing.record import ANONYMOUS

_PURPOSE = b"fencing-gateway fingerprint of an API key v1"
# scrypt, because the database shows four bytes of it. A guess takes some 40 ms, more than one at the gateway itself.
_COST, _BLOCK = 2**14, 8
_LENGTH = 4


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
        if not rule.claim:
            return rule.role[0]
        named = claim_of(claims or {}, rule.claim)
        roles = named if isinstance(named, list) else [named]
        found = next((role for role in rule.role if role in roles), None)
        if found is not None:
            return found
    return None


class KeyKind(StrEnum):
    """The kinds of keys."""

    API = "api"
    S3 = "s3"


class KeyUse(Use):
    """The uses of one key in this process. ``last``: the monotonic time of the last one, if there was any."""

    __slots__ = ("_content", "caller", "kind", "last")

    def __init__(self, caller: str, kind: KeyKind, content: bytes) -> None:
        """``content``: the digest of an API key, or the access key id of a pair, which is no secret."""
        self.caller, self.kind, self._content = caller, kind, content
        self.last: float | None = None

    def note(self) -> None:
        self.last = monotonic()

    def shown(self) -> str:
        """Return the name by which people recognise the key. The first call for an API key takes 40 ms."""
        return self._content.decode() if self.kind is KeyKind.S3 else fingerprint(self.caller, self._content)


def digest_of(key: bytes) -> bytes:
    """Return the digest by which API keys are compared: all have one length, and no key stays in memory."""
    return hashlib.sha256(key).digest()


@lru_cache(maxsize=4096)
def fingerprint(caller: str, digest: bytes) -> str:
    """Return the fingerprint of an API key: the same at all gateways. ``digest``: that of the key."""
    salt = _PURPOSE + caller.encode()
    return hashlib.scrypt(digest, salt=salt, n=_COST, r=_BLOCK, p=1, dklen=_LENGTH).hex()


def names_of(caller: str, patterns: Iterable[str], *, identified: bool = False) -> frozenset[str]:
    """Return the names by which rules call a caller, among those of ``patterns``.

    ``*`` is for all callers of the configuration. ``identified``: a token names the caller, so a name that ends in
    ``*`` stands for all that begin like it.
    """
    if not identified:
        return frozenset({caller} if caller == ANONYMOUS else {caller, "*"})
    begins = (one for one in patterns if ":" in one and one.endswith("*") and caller.startswith(one[:-1]))
    return frozenset((caller, *begins))


def rights_of(
    rules: Sequence[GrantRule], caller: str, groups: Sequence[str] = (), *, identified: bool = False
) -> Rights:
    """Return the rights of a caller: the grants that name it, or one of its groups."""
    known = names_of(caller, (name for rule in rules for name in rule.callers), identified=identified)
    return Rights(
        tuple(
            Grant(
                frozenset(rule.actions),
                number=number,
                everything=rule.everything,
                tables=rule.tables,
                functions=rule.functions,
                buckets=rule.buckets,
                resources=rule.resources,
            )
            for number, rule in enumerate(rules, 1)
            if known.intersection(rule.callers) or set(rule.groups).intersection(groups)
        )
    )


class Callers:
    """All configured callers, with their grants.

    ``anonymous``: the caller of requests without credentials; None if no grant names it. ``uses``: of all keys.
    """

    def __init__(
        self,
        callers: Iterable[CallerKeys],
        grants: Sequence[GrantRule] = (),
        roles: Sequence[RoleRule] = (),
        issuers: Issuers | None = None,
        signing_keys: Sequence[str] = (),
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """``roles``: the rules that give callers roles of the database. ``issuers``: of identity tokens.

        ``signing_keys`` sign what the gateway issues to their callers. The first one signs, all of them prove.
        ``clock`` ends client certificates. Without it they prove nothing.
        """
        self._clock = clock
        self._certificates: dict[str, Principal] = {}
        self._grants, self._roles, self._issuers = grants, roles, issuers
        self._signing_keys = tuple(signing_keys)
        rights = rights_of(grants, ANONYMOUS)
        role = role_of(roles, [ANONYMOUS], [], None)
        self.anonymous = Principal(ANONYMOUS, rights, role=role) if rights.grants else None
        self.uses: list[KeyUse] = []
        self._digests: list[tuple[bytes, Principal]] = []
        self._secrets: dict[str, tuple[Principal, str]] = {}
        self._secrets_by_name: dict[str, tuple[Principal, str]] = {}
        """The callers that fenced credentials are issued to, with what these may do at most."""
        self._sessions: dict[str, tuple[Principal, tuple[bytes, ...]]] = {}
        for caller in callers:
            role = role_of(roles, [caller.name, "*"], caller.groups, None)
            principal = Principal(caller.name, rights_of(grants, caller.name, caller.groups), role=role)
            api_keys = [key.get_secret_value() for key in caller.api_key]
            for digest in dict.fromkeys(digest_of(key.encode()) for key in api_keys):
                self._digests.append((digest, self._by_key(principal, KeyKind.API, digest)))
            if api_keys:
                self._sessions[caller.name] = principal, tuple(map(session_key, api_keys))
            self._certificates |= dict.fromkeys(caller.certificates, principal)
            for key_id, secret in caller.pairs:
                self._secrets[key_id] = self._by_key(principal, KeyKind.S3, key_id.encode()), secret
                confined = replace(principal, rights=_confined(principal.rights))
                self._secrets_by_name.setdefault(caller.name, (confined, secret))

    def _by_key(self, principal: Principal, kind: KeyKind, content: bytes) -> Principal:
        """Return a caller as one of its keys proves it, with the uses of this key."""
        use = KeyUse(principal.name, kind, content)
        self.uses.append(use)
        return replace(principal, use=use)

    def by_bearer(
        self, headers: Iterable[tuple[bytes, bytes]], certificate: ClientCertificate | None = None
    ) -> Principal:
        """Return the owner of the key in ``Authorization: Bearer …`` or ``apikey: …``, which PostgREST clients send.

        If both are there they must prove the same caller. Without a key it is the owner of the ``certificate``, if it
        has one. Raises ``Unauthenticated``, for a wrong key even if a certificate or no proof at all would do, because
        its sender expects to be a caller.
        """
        presented = _presented(headers)
        if not presented:
            owner = None if certificate is None else self.by_certificate(certificate)
            if owner is not None:
                return owner
            if self.anonymous is not None:
                return self.anonymous
            if certificate is not None:
                raise _of_nobody(certificate)
            advice = "Send an API key or an identity token as 'Authorization: Bearer …'." if self._issuers else None
            raise Unauthenticated("The request carries no credentials.", advice=advice)
        proven = [self._owner(presented[0])]
        proven += [one for key in presented[1:] if (one := self._owner(key)).name != proven[0].name]
        if len(proven) > 1 and all(one.claims is not None for one in proven):
            # Clients send a public token as apikey and that of their user beside it. Both are proven.
            return self._owner(presented[0])
        if len(proven) != 1:
            raise Unauthenticated("The headers Authorization and apikey belong to two callers.")
        return proven[0]

    def log_in(self, api_key: str, now: datetime) -> tuple[Principal, str]:
        """Return the owner of an API key and a new session. Raises ``Unauthenticated`` for an unknown key."""
        principal = self._owner(api_key.encode())
        return principal, issue_session(principal.name, session_key(api_key), now)

    def by_certificate(self, certificate: ClientCertificate) -> Principal | None:
        """Return the caller that one of the names in a client certificate is configured for; None if there is none.

        Raises ``Unauthenticated`` for names of two callers, and for a certificate that has expired since its handshake.
        """
        owners = {
            self._certificates[name].name: self._certificates[name]
            for name in certificate.names & self._certificates.keys()
        }
        if not owners or self._clock is None:
            return None
        if len(owners) > 1:
            raise Unauthenticated(
                "The client certificate has names of two callers.",
                advice="Ask the operator of the gateway to give both names to one caller, or use another certificate.",
            )
        proof = Proof(certificate.expires, self._clock)
        if not proof.holds():
            raise Unauthenticated(
                "The client certificate has expired.", advice="Connect again, with a certificate that has not."
            )
        [principal] = owners.values()
        return replace(principal, proof=proof)

    @property
    def offers_login(self) -> bool:
        """Return whether a caller has an API key, with which it can log in to the page."""
        return bool(self._sessions)

    def of_session(self, session: str | None, now: datetime) -> Principal | None:
        """Return the caller of a session of the page; None if it is none, or has ended."""

        def keys_of(caller: str) -> Sequence[bytes]:
            known = self._sessions.get(caller)
            return () if known is None else known[1]

        caller = caller_of(session or "", keys_of, now)
        return None if caller is None else self._sessions[caller][0]

    def secret_of(self, access_key_id: str, session_token: str | None) -> tuple[Principal, str] | None:
        """Return the owner of an access key id and its secret, to check a signature. This is a ``SecretOf``.

        Only a signature that fits is a use of the key, so its use is noted later.
        Fenced credentials belong to the caller they were issued to, bound to their scope.
        """
        issued = temporary_keys.is_issued(session_token)
        owned = self._secrets.get(access_key_id)
        if owned is not None and not issued:
            return owned
        if owned is None and not access_key_id.startswith(temporary_keys.PREFIX):
            return None
        if owned is not None or session_token is None or not issued:
            raise StoreError.known("InvalidToken", "It does not belong to this access key.")
        presented = temporary_keys.read_session_token(session_token)
        if presented.caller in self._secrets_by_name and presented.scope is not None:
            principal, secret = self._secrets_by_name[presented.caller]
            principal = replace(principal, scope=presented.scope, expires=presented.expires)
            return principal, presented.secret(access_key_id, secret)
        return self._identified(access_key_id, presented)

    def _identified(self, access_key_id: str, presented: PresentedSession) -> tuple[Principal, str] | None:
        """Return the owner of temporary keys that were issued for an identity token, and their secret."""
        if not self._issuers or not self._issuers.trusts(presented.caller):
            return None
        secret = self._signed_by_any(access_key_id, presented)
        identity = Identity(presented.caller, presented.groups, {}, presented.expires)
        principal = replace(self.admit(identity), claims=None, expires=presented.expires)
        if presented.scope is None:
            return principal, secret
        return replace(principal, rights=_confined(principal.rights), scope=presented.scope), secret

    def _signed_by_any(self, access_key_id: str, presented: PresentedSession) -> str:
        refusal = StoreError.known("InvalidToken", "This gateway issues no keys for identity tokens.")
        for key in self._signing_keys:
            try:
                return presented.secret(access_key_id, key)
            except StoreError as error:
                refusal = error
        raise refusal

    def issue(self, principal: Principal, expires: datetime, scope: FencedScope | None = None) -> TemporaryKeys:
        """Issue temporary S3 keys until ``expires``, which is aware. With a scope they are fenced credentials.

        Raises ``Unauthenticated`` or ``Forbidden`` for a caller that cannot have any.
        """
        if principal.is_anonymous:
            raise Unauthenticated("Only known callers get temporary keys.")
        if principal.claims is not None:
            if not self._signing_keys:
                raise Forbidden(
                    "This gateway issues no S3 keys for identity tokens.",
                    advice="Ask the operator of the gateway to set signing_keys in [identity].",
                )
            secret, groups = self._signing_keys[0], principal.groups
        elif principal.name in self._secrets_by_name:
            secret, groups = self._secrets_by_name[principal.name][1], ()
        else:
            raise Forbidden(
                f"The caller {principal.name} has no S3 keys to derive fenced credentials from.",
                advice="Ask the operator of the gateway for an access_key_id.",
            )
        unique = secrets.token_hex(10).upper()
        return temporary_keys.issue(principal.name, secret, unique, expires, scope, groups)

    def _owner(self, key: bytes) -> Principal:
        digest, owner = digest_of(key), None
        for known, principal in self._digests:  # compares all of them, so that the time reveals nothing
            if hmac.compare_digest(known, digest):
                owner = principal
        if owner is None and self._issuers and looks_like_one(key):
            return self._issuers.principal(key, self.admit)
        if owner is None or not key:
            raise Unauthenticated("The API key is unknown.")
        owner.use.note()
        return owner

    async def identify(self, token: str) -> Principal:
        """Return the caller that an identity token proves. Raises ``Unauthenticated`` and ``Unavailable``."""
        if not self._issuers:
            raise Unauthenticated("This gateway trusts no issuer of identity tokens.")
        credential = token.encode()
        await self._issuers.meet([credential])
        return self._issuers.principal(credential, self.admit)

    async def meet(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Fetch the keys that prove the identity tokens in a request, if they are not known yet."""
        if self._issuers:
            with suppress(Unauthenticated):
                await self._issuers.meet(_presented(headers))

    def admit(self, identity: Identity) -> Principal:
        """Return the caller of a proven identity, with the rights that the configuration gives it now."""
        name, groups = identity.caller, identity.groups
        names = names_of(name, (one for rule in self._roles for one in rule.callers), identified=True)
        return Principal(
            name,
            rights_of(self._grants, name, groups, identified=True),
            role=role_of(self._roles, sorted(names), groups, identity.claims),
            claims=identity.claims,
            groups=groups,
        )


def _of_nobody(certificate: ClientCertificate) -> Unauthenticated:
    names = ", ".join(sorted(certificate.names))
    shown = f"Its names are {names[:500]}." if names else "It has no name of a kind that callers can have."
    return Unauthenticated(
        "The client certificate is not that of any caller, and the request carries no API key.",
        advice=f"{shown} Send an API key, or ask the operator of the gateway to add a name to a caller's certificates.",
    )


def _confined(rights: Rights) -> Rights:
    """Return the rights that fenced credentials of a caller have at most."""
    return rights.only(Action.READ, Action.WRITE)


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> list[bytes]:
    """Return the keys in a request: at most one of each header."""
    found: dict[bytes, bytes] = {}
    for raw_name, value in headers:
        name = raw_name.lower()
        if name not in (b"authorization", b"apikey"):
            continue
        if name in found:
            raise Unauthenticated(f"The header {name.decode()} appears twice.")
        found[name] = _bearer(value) if name == b"authorization" else value.strip()
    return [found[name] for name in (b"authorization", b"apikey") if name in found]


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.strip().partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthenticated("The Authorization header must be of the form 'Bearer …'.")
    return key.strip()
