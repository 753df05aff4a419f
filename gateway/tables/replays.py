"""Idempotency keys: what one may look like, and what makes two requests the same one.

Follows draft-ietf-httpapi-idempotency-key-header. The token is no part of a request here: after a takeover it is the
next holder that sends the write again, and it has to get the answer, not a second write.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256

from gateway.errors import RequestMalformed

HEADER = b"idempotency-key"
REPLAYED = (b"idempotency-replayed", b"true")

_MOST = 255
# A string of RFC 8941, or the same without its quotes where nothing in it needs them.
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_BARE = re.compile(r"[\x21\x23-\x2b\x2d-\x3a\x3c-\x5b\x5d-\x7e]+")

# What of the headers decides what is done, or in which form it is answered.
_MEANT = (b"content-type", b"prefer", b"accept", b"if-match", b"if-none-match")


def parse_key(headers: Mapping[bytes, str]) -> str | None:
    """The key in the header, if there is one. Raises ``RequestMalformed``."""
    if HEADER not in headers:
        return None
    text = headers[HEADER].strip(" \t")
    quoted = _QUOTED.fullmatch(text)
    key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text if _BARE.fullmatch(text) else ""
    if not 1 <= len(key) <= _MOST:
        raise RequestMalformed(
            f"Idempotency-Key is not one key of 1 to {_MOST} printable ASCII characters.",
            advice="Send one key in double quotes, such as a new UUID for each thing you want done.",
        )
    return key


def fingerprint(
    method: str, path: str, schema: str, query_string: bytes, headers: Mapping[bytes, str], body: bytes
) -> bytes:
    """What tells this request from others: 32 bytes. ``headers`` by lower-case name.

    Clients may send the parameters of a query, and the names in ``columns``, in another order the next time.
    """
    parameters = sorted(_columns_sorted(part) for part in query_string.split(b"&"))
    meant = [headers.get(name, "").encode("latin-1", "replace") for name in _MEANT]
    return digest([method.encode(), path.encode(), schema.encode(), b"&".join(parameters), *meant, body])


def digest(parts: Iterable[bytes]) -> bytes:
    """One digest of several parts, each kept apart from the next."""
    found = sha256()
    for part in parts:
        found.update(len(part).to_bytes(8, "big"))
        found.update(part)
    return found.digest()


def _columns_sorted(parameter: bytes) -> bytes:
    name, equals, value = parameter.partition(b"=")
    if name != b"columns":
        return parameter
    return name + equals + b",".join(sorted(value.replace(b"%2C", b",").replace(b"%2c", b",").split(b",")))
