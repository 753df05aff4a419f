"""Client certificates: the names in one that TLS has verified, and the form of such a name in the configuration."""

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import urlsplit

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
