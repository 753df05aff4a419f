"""Identity tokens: JSON Web Tokens (RFC 7519) that a trusted issuer has signed. Pure: keys and time are given."""

import hmac
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

from joserfc import errors, jws
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey, import_key
from joserfc.jwt import JWTClaimsRegistry

from gateway.auth.principal import claim_of
from gateway.errors import Unauthenticated

LARGEST = 8 * 1024
"""Bytes of a token. A head of a request has room for 16 KiB."""
LARGEST_OF_LOGIN = 32 * 1024
"""Bytes of the ID token of a login, which comes in no head, and may list hundreds of groups."""

LOG_IN_AGAIN = "Log in again. If it happens again, tell the operator of the gateway."
_GET_ANOTHER = (
    "Get a new one from its issuer. If it fails as well, ask the operator to check [[issuers]] of the gateway."
)

_MOST_KEYS = 64
# Signatures that are checked for a token that does not name its key.
_MOST_TRIED = 8
# Characters of a modulus of 2,048 bits.
_SHORTEST_RSA = 342
_LONGEST_NAME = 200

LEEWAY = 30
"""Seconds by which the clocks of an issuer and of the gateway may differ."""
# RFC 7518, 8037. The kind of the key decides, or a public key could be taken for a shared secret.
_SYMMETRIC = ("HS256", "HS384", "HS512")
_ASYMMETRIC = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA", "Ed25519")

Keys: TypeAlias = Sequence[Key]


class TrustedIssuer(NamedTuple):
    """An issuer, and which of its tokens are for this gateway.

    ``issuer``: the claim ``iss``; None for tokens without one. ``audiences``: the claim ``aud`` has one of them; empty
    if it is not looked at. ``caller_claim`` and ``groups_claim`` are paths of keys. ``login_client``: the client id by
    which the gateway logs people in there; None if it does not. Tokens for this client prove a login, and no request.
    """

    name: str
    issuer: str | None
    audiences: tuple[str, ...]
    caller_claim: tuple[str, ...] = ("sub",)
    groups_claim: tuple[str, ...] = ()
    login_client: str | None = None


class Unverified(NamedTuple):
    """The words of a token about itself. They only lead to the key that can prove it."""

    issuer: str | None
    key_id: str | None


class Identity(NamedTuple):
    """A proven identity. Its name and groups begin with the name of the issuer. ``expires`` is aware."""

    caller: str
    groups: tuple[str, ...]
    claims: Mapping[str, object]
    expires: datetime


def looks_like_one(credential: bytes) -> bool:
    """Return whether a credential has the form of a signed token. An object in JSON, encoded, begins with these."""
    return credential.startswith(b"eyJ") and credential.count(b".") == 2


def read_keys(document: bytes) -> Keys:
    """Return the public keys of a JSON Web Key Set (RFC 7517) that can prove a signature.

    Other keys in it are left out. Raises ``ValueError`` if it is no such document.
    """
    try:
        entries: Any = json.loads(document)["keys"]
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError("it is not a JSON Web Key Set") from error
    if not isinstance(entries, list):
        raise ValueError("it is not a JSON Web Key Set")
    keys = [key for entry in entries[:_MOST_KEYS] if (key := _public_key(entry)) is not None]
    if not keys:
        raise ValueError("it has no public key for signatures")
    return keys


def secret_key(secret: bytes) -> Keys:
    return [OctKey.import_key(secret)]


def look(token: bytes, largest: int = LARGEST) -> Unverified:
    """Return what a token says of itself. Raises ``Unauthenticated`` if it is no token."""
    if len(token) > largest:
        advice = "Ask its issuer for tokens with fewer groups and claims."
        raise Unauthenticated(f"The identity token has more than {largest} bytes.", advice=advice)
    try:
        found = jws.extract_compact(token, registry=_registry(None))
        issuer, key_id = _claims(found.payload).get("iss"), found.headers().get("kid")
    except (errors.JoseError, ValueError, TypeError, AttributeError, RecursionError) as error:  # a header may be a list
        raise Unauthenticated("The identity token cannot be read.", advice=_GET_ANOTHER) from error
    return Unverified(issuer if isinstance(issuer, str) else None, key_id if isinstance(key_id, str) else None)


def verify(token: bytes, trusted: TrustedIssuer, keys: Keys, now: datetime) -> Identity:
    """Return the identity that the token of a request proves at ``now``, which is aware.

    Raises ``Unauthenticated``, which says what is wrong.
    """
    identity = _verify(token, trusted, keys, now, LARGEST)
    if trusted.login_client is None:
        return identity
    if not trusted.audiences or trusted.login_client in _audiences(identity.claims):
        raise Unauthenticated(
            "This identity token proves a login to the page, and no request.",
            advice="Ask its issuer for a token with an audience of the gateway's API.",
        )
    return identity


def verify_login(token: bytes, trusted: TrustedIssuer, nonce: str, keys: Keys, now: datetime) -> Identity:
    """Return the identity that the ID token of a login proves at ``now``, which is aware. OpenID Connect Core, 3.1.3.7.

    ``nonce``: that of the login. Raises ``Unauthenticated``, which says what is wrong.
    """
    assert trusted.issuer is not None
    assert trusted.login_client is not None
    identity = _verify(token, trusted._replace(audiences=(trusted.login_client,)), keys, now, LARGEST_OF_LOGIN)
    claims = identity.claims
    said = claims.get("nonce")
    if not isinstance(said, str) or not hmac.compare_digest(said.encode("utf-8", "replace"), nonce.encode()):
        raise Unauthenticated("The ID token is of another login: its claim nonce.", advice=LOG_IN_AGAIN)
    party = claims.get("azp")
    if party != trusted.login_client and (party is not None or len(_audiences(claims)) > 1):
        raise Unauthenticated("The ID token was issued to another client: its claim azp.", advice=LOG_IN_AGAIN)
    return identity


def _verify(token: bytes, trusted: TrustedIssuer, keys: Keys, now: datetime, largest: int) -> Identity:
    claims = _claims(_signed(token, trusted, keys, largest))
    options: dict[str, Any] = {"exp": {"essential": True}}
    if trusted.issuer is not None:
        options["iss"] = {"essential": True, "value": trusted.issuer}
    if trusted.audiences:
        options["aud"] = {"essential": True, "values": list(trusted.audiences)}
    try:
        JWTClaimsRegistry(now=int(now.timestamp()), leeway=LEEWAY, **options).validate(claims)
        expires = datetime.fromtimestamp(float(claims["exp"]) + LEEWAY, UTC)
    except errors.ExpiredTokenError as error:
        raise Unauthenticated("The identity token has expired.", advice="Get a new one from its issuer.") from error
    except errors.ClaimError as error:
        raise _wrong_claim(error) from error
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise Unauthenticated("The times of the identity token cannot be read.", advice=_GET_ANOTHER) from error
    return Identity(_named(trusted, claims), _groups(trusted, claims), claims, expires)


def _claims(content: bytes) -> dict[str, Any]:
    claims = json.loads(content)
    if not isinstance(claims, dict):
        raise TypeError("the claims are no JSON object")
    return claims


def _wrong_claim(error: errors.ClaimError) -> Unauthenticated:
    claim = error.claim
    if isinstance(error, errors.MissingClaimError):
        advice = f"Ask its issuer for tokens with the claim {claim}."
        return Unauthenticated(f"The identity token has no claim {claim}.", advice=advice)
    if claim == "aud":
        advice = "Ask its issuer for a token with the audience of this gateway."
        return Unauthenticated("The identity token is for another audience: its claim aud.", advice=advice)
    if claim in ("nbf", "iat"):
        advice = "Wait, or set the clocks of issuer and gateway."
        return Unauthenticated(f"The identity token is not valid yet: its claim {claim}.", advice=advice)
    return Unauthenticated(f"The identity token cannot be used: its claim {claim}.", advice=_GET_ANOTHER)


def _signed(token: bytes, trusted: TrustedIssuer, keys: Keys, largest: int) -> bytes:
    """Return the content of a token whose signature one of the keys proves."""
    key_id = look(token, largest).key_id
    named = [key for key in keys if key.kid == key_id] if key_id is not None else list(keys)
    # A shared secret has no name, but its issuer may give it one in tokens. The signature decides.
    named = named or [key for key in keys if key.kid is None]
    if not named:
        problem = f"The issuer {trusted.name} has no key with the id (kid) that the identity token names."
        raise Unauthenticated(problem, advice=_GET_ANOTHER)
    for key in named[:_MOST_TRIED]:
        algorithms = _SYMMETRIC if isinstance(key, OctKey) else _ASYMMETRIC
        try:
            return jws.deserialize_compact(token, key, algorithms, _registry(algorithms)).payload
        except (errors.JoseError, ValueError, TypeError, RecursionError):
            continue  # another key of this name, or of none, may prove it
    problem = f"No key of the issuer {trusted.name} verifies the identity token with an allowed algorithm."
    raise Unauthenticated(problem, advice=_GET_ANOTHER)


def _registry(algorithms: Sequence[str] | None) -> jws.JWSRegistry:
    # A header that the issuer adds is of no concern, unless it says that it is critical.
    registry = jws.JWSRegistry(algorithms=algorithms, strict_check_header=False)
    registry.max_header_length = LARGEST
    return registry


def _public_key(entry: Any) -> Key | None:
    if not isinstance(entry, dict) or entry.get("kty") == "oct" or entry.get("use") == "enc":
        return None
    if entry.get("kty") == "RSA" and len(str(entry.get("n"))) < _SHORTEST_RSA:
        return None
    try:
        key = import_key(entry)
    except (errors.JoseError, ValueError, TypeError, KeyError):
        return None
    return key if isinstance(key, RSAKey | ECKey | OKPKey) else None


def _audiences(claims: Mapping[str, object]) -> Sequence[object]:
    found = claims.get("aud")
    return found if isinstance(found, list) else [found]


def _named(trusted: TrustedIssuer, claims: Mapping[str, object]) -> str:
    found = claim_of(claims, trusted.caller_claim)
    if not isinstance(found, str) or not found:
        raise Unauthenticated(
            f"The identity token has no claim {'.'.join(trusted.caller_claim)}, which names its caller.",
            advice=f"Ask the operator of the gateway to set caller_claim of the issuer {trusted.name}.",
        )
    if found != found.strip() or not found.isprintable() or len(found) > _LONGEST_NAME:
        problem = "The identity token names a caller that is too long, or has invisible characters."
        advice = f"Ask the operator of the gateway to check caller_claim of the issuer {trusted.name}."
        raise Unauthenticated(problem, advice=advice)
    return f"{trusted.name}:{found}"


def _groups(trusted: TrustedIssuer, claims: Mapping[str, object]) -> tuple[str, ...]:
    found = claim_of(claims, trusted.groups_claim) if trusted.groups_claim else []
    listed = found if isinstance(found, list) else [found]
    return tuple(f"{trusted.name}:{group}" for group in listed if isinstance(group, str) and group)
