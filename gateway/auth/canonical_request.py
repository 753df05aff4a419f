"""The canonical form of an S3 request, as Signature Version 4 signs it: the same for verifying and for signing.

S3 encodes once and never normalises: ``/a//b`` and ``/a/../b`` are keys of their own.
"""

import hashlib
import hmac
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote_from_bytes, unquote_to_bytes

ALGORITHM = "AWS4-HMAC-SHA256"
TIMESTAMP_FORMAT = "%Y%m%dT%H%M%SZ"
SHA256_OF_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body: path and query as on the wire, headers as ASGI delivers them."""

    method: str
    raw_path: bytes
    query_string: bytes
    headers: Sequence[tuple[bytes, bytes]]


def uri(raw_path: bytes) -> str:
    """Return the path with every byte but ``A-Za-z0-9-._~/`` percent-encoded, whatever its spelling on the wire."""
    return quote_from_bytes(unquote_to_bytes(raw_path), safe="/") or "/"


def query(query_string: bytes) -> str:
    """Return the query sorted, with each name and value encoded once. S3 reads a plus sign as a space."""
    pairs = []
    for part in query_string.split(b"&"):
        if part:
            name, _, value = part.replace(b"+", b" ").partition(b"=")
            pairs.append((quote_from_bytes(unquote_to_bytes(name), safe=""), _encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs))


def _encoded(value: bytes) -> str:
    return quote_from_bytes(unquote_to_bytes(value), safe="")


def request(
    method: str, raw_path: bytes, query_string: bytes, headers: Iterable[tuple[str, bytes]], payload: str
) -> tuple[str, str]:
    """Return the SHA-256 (hex) of the canonical request, and its list of signed headers.

    ``headers`` are the signed ones, names in lower case, sorted and unique. ``payload`` is the value of
    x-amz-content-sha256: a SHA-256 in hex, or the name of a payload mode.
    """
    kept = list(headers)
    names = ";".join(name for name, _ in kept)
    head = f"{method}\n{uri(raw_path)}\n{query(query_string)}\n".encode()
    lines = b"".join(name.encode() + b":" + b" ".join(value.split()) + b"\n" for name, value in kept)
    return hashlib.sha256(head + lines + f"\n{names}\n{payload}".encode()).hexdigest(), names


def signature(key: bytes, *lines: str) -> str:
    """Return the signature (hex) over these lines."""
    return hmac.new(key, "\n".join(lines).encode(), hashlib.sha256).hexdigest()


def scope(day: str, region: str) -> str:
    """Return the scope of a signing key: one day (``YYYYMMDD``), one region, S3."""
    return f"{day}/{region}/s3/aws4_request"


@lru_cache(maxsize=512)
def signing_key(secret: str, day: str, region: str, service: str = "s3") -> bytes:
    """Return the key that signs for one day (``YYYYMMDD``), one region and one service."""
    key = f"AWS4{secret}".encode()
    for step in (day, region, service, "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    return key
