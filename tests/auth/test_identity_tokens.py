"""Identity tokens: only a good one proves a caller, and each wrong one is refused for its own reason."""

import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from joserfc.errors import SecurityWarning
from joserfc.jwk import OctKey, RSAKey

from gateway.auth.identity_tokens import (
    LARGEST,
    TrustedIssuer,
    look,
    looks_like_one,
    read_keys,
    secret_key,
    verify,
)
from gateway.errors import Unauthenticated
from tests import identity_provider
from tests.identity_provider import AUDIENCE, ISSUER, SigningKey, ec_key, encoded, rsa_key, token

RSA, EC, FOREIGN = rsa_key("one"), ec_key("two"), rsa_key("one")
SECRET = b"a secret that the issuer and the gateway share"
TRUSTED = TrustedIssuer("id", ISSUER, (AUDIENCE, "other"), ("RS256", "ES256"), groups_claim=("realm", "roles"))
SHARED = TrustedIssuer("shared", None, (), ("HS256",))
NOW = datetime.now(UTC)


def seconds(offset: float) -> int:
    return int((NOW + timedelta(seconds=offset)).timestamp())


def claims(subject: str = "ann", **more: Any) -> dict[str, Any]:
    """Return the claims of a token that is good at ``NOW``, however late a test runs."""
    return identity_provider.claims(subject, **{"iat": seconds(0), "exp": seconds(600), **more})


def document(*keys: SigningKey) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


KEYS = read_keys(document(RSA, EC))


def proven(text: str, trusted: TrustedIssuer = TRUSTED, keys: Any = KEYS, now: datetime = NOW) -> Any:
    return verify(text.encode(), trusted, keys, now)


@pytest.mark.parametrize(("key", "algorithm"), [(RSA, "RS256"), (EC, "ES256")])
def test_a_good_token_proves_its_caller_and_groups(key: SigningKey, algorithm: str) -> None:
    content = claims("system:serviceaccount:prod:writer", realm={"roles": ["admin", 7, ""]}, aud=["x", "other"])
    found = proven(token(key, content, algorithm))
    assert (found.caller, found.groups) == ("id:system:serviceaccount:prod:writer", ("id:admin",))
    assert found.claims == content
    assert found.expires == datetime.fromtimestamp(content["exp"], UTC) + timedelta(seconds=30)


def test_a_token_without_the_name_of_its_key_is_tried_with_all() -> None:
    assert proven(token(EC, claims(), "ES256", kid=None)).caller == "id:ann"


def test_a_shared_secret_is_the_convention_of_postgrest() -> None:
    content = {"sub": "ann", "role": "editor", "exp": NOW.timestamp() + 60}
    found = proven(token(OctKey.import_key(SECRET), content, "HS256", kid=None), SHARED, secret_key(SECRET))
    assert (found.caller, found.claims["role"]) == ("shared:ann", "editor")


def unsigned(header: Any, content: Any, signature: bytes = b"") -> str:
    return f"{encoded(header)}.{encoded(content)}.{encoded(signature)}"


def with_public_key_as_secret() -> str:
    """The attack by which a verifier takes the public key for the secret of an HMAC."""
    signed = f"{encoded({'alg': 'HS256', 'kid': 'one'})}.{encoded(claims())}"
    return f"{signed}.{encoded(hmac.digest(RSA.as_pem(private=False), signed.encode(), 'sha256'))}"


def resigned() -> str:
    head, _, signature = token(RSA, claims("ann")).split(".")
    return f"{head}.{encoded(claims('root'))}.{signature}"


WRONG = {
    "nothing": ("", "cannot be read"),
    "no token": ("eyJ.eyJ.eyJ", "cannot be read"),
    "not an object": (unsigned({"alg": "RS256"}, []), "cannot be read"),
    "nested deeply": (unsigned({"alg": "RS256"}, b"[" * 5000), "cannot be read"),
    "five parts": (token(RSA, claims()) + ".a.b", "cannot be read"),
    "no algorithm": (unsigned({"kid": "one"}, claims()), "cannot be read"),
    "alg none": (unsigned({"alg": "none", "kid": "one"}, claims()), "No key"),
    "alg None": (unsigned({"alg": "None", "kid": "one"}, claims()), "No key"),
    "alg none and no kid": (unsigned({"alg": "none"}, claims()), "No key"),
    "no signature": (token(RSA, claims()).rpartition(".")[0] + ".", "No key"),
    "swapped algorithm": (with_public_key_as_secret(), "No key"),
    "algorithm that is not pinned": (token(RSA, claims(), "RS512"), "No key"),
    "key of another type": (token(RSA, claims(), kid="two"), "No key"),
    "foreign key of the same name": (token(FOREIGN, claims()), "No key"),
    "its own key in the header": (token(FOREIGN, claims(), jwk=FOREIGN.as_dict(private=False)), "No key"),
    "an address of keys in the header": (token(FOREIGN, claims(), jku="http://evil.example/keys"), "No key"),
    "a critical header": (token(RSA, claims(), crit=["x"], x=1), "No key"),
    "kid as a path": (token(RSA, claims(), kid="../../dev/null"), "no key with the id"),
    "kid as SQL": (token(RSA, claims(), kid="' OR 1=1 --"), "no key with the id"),
    "kid as a number": (unsigned({"alg": "RS256", "kid": 1}, claims(), b"x"), "cannot be read|No key"),
    "changed content": (resigned(), "No key"),
    "expired": (token(RSA, claims(exp=seconds(-31))), "has expired"),
    "without an end": (token(RSA, claims(exp=None)), "no claim exp"),
    "an end as a text": (token(RSA, claims(exp="9999999999")), "its claim exp"),
    "an end after all years": (token(RSA, claims(exp=10**18)), "times of the identity token"),
    "an infinite end": (token(RSA, claims(exp=float("inf"))), "times of the identity token|its claim exp"),
    "not yet valid": (token(RSA, claims(nbf=seconds(60))), "its claim nbf"),
    "issued in the future": (token(RSA, claims(iat=seconds(60))), "its claim iat"),
    "foreign audience": (token(RSA, claims(aud="elsewhere")), "its claim aud"),
    "no audience": (token(RSA, claims(aud=None)), "no claim aud"),
    "an audience as an object": (token(RSA, claims(aud={"gateway": 1})), "its claim aud"),
    "foreign issuer": (token(RSA, claims(iss="https://issuer.example/")), "its claim iss"),
    "no issuer": (token(RSA, claims(iss=None)), "no claim iss"),
    "no caller": (token(RSA, claims(sub=None)), "no claim sub"),
    "an empty caller": (token(RSA, claims(sub="")), "no claim sub"),
    "a caller as a number": (token(RSA, claims(sub=5)), "its claim sub"),
    "an invisible caller": (token(RSA, claims(sub="ann\u200b")), "invisible"),
    "a caller with a line break": (token(RSA, claims(sub="ann\nroot")), "invisible"),
    "a caller in spaces": (token(RSA, claims(sub=" ann")), "invisible"),
    "a long caller": (token(RSA, claims(sub="a" * 201)), "too long"),
    "a large token": (token(RSA, claims(padding="x" * LARGEST)), "bytes"),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_token_proves_nothing(text: str, words: str) -> None:
    with pytest.raises(Unauthenticated, match=words) as caught:
        proven(text)
    assert not any(len(part) > 8 and part in str(caught.value) for part in text.split("."))
    assert "API key" not in caught.value.advice, "the advice is about the token"


def test_a_token_of_a_shared_secret_is_not_proven_by_another_or_by_none() -> None:
    content = {"sub": "ann", "exp": seconds(60)}
    foreign = token(OctKey.import_key(b"another secret that is long enough"), content, "HS256", kid=None)
    for text in (foreign, unsigned({"alg": "none"}, content), unsigned({"alg": "HS256"}, content)):
        with pytest.raises(Unauthenticated, match="No key"):
            proven(text, SHARED, secret_key(SECRET))


def test_clocks_may_differ_by_the_leeway() -> None:
    assert proven(token(RSA, claims(exp=seconds(-29), nbf=seconds(29), iat=seconds(29)))).caller == "id:ann"


def test_only_public_keys_for_signatures_are_read() -> None:
    with pytest.warns(SecurityWarning):
        weak = RSAKey.generate_key(1024).as_dict(private=False)
    entries = [
        {"kty": "oct", "k": encoded(SECRET), "kid": "shared"},
        {**RSA.as_dict(private=False), "use": "enc", "kid": "encrypting"},
        {"kty": "AKP", "kid": "of tomorrow"},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB", "kid": "short"},
        {**weak, "kid": "weak"},
        "no key",
        EC.as_dict(private=False),
    ]
    assert [key.kid for key in read_keys(json.dumps({"keys": entries}).encode())] == ["two"]


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[]", b'{"keys": 5}', b'{"keys": []}', b"<html>", b'{"keys": [{}]}', b"[" * 5000]
)
def test_any_other_document_has_no_keys(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"JSON|public key|Expecting"):
        read_keys(text)


def test_a_credential_is_taken_for_a_token_by_its_form() -> None:
    good = token(RSA, claims())
    assert looks_like_one(good.encode())
    assert (look(good.encode()).issuer, look(good.encode()).key_id) == (ISSUER, "one")
    assert not looks_like_one(b"an-api-key")
