"""Which bucket and key a request names: by its path alone, or by its host and its path. Nothing is normalised."""

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes

from gateway.errors import StoreError

MAX_KEY_BYTES = 1024

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
# No bucket has a name that ends like this: AWS makes such names for access points, each of them another name of a
# bucket and so of every object in it.
_ALIASES = ("-s3alias", "--op-s3", "--ol-s3", "--xa-s3", ".mrap")
_PORT = re.compile(r":[0-9]*\Z")
_BROKEN_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def bucket_of_host(headers: Iterable[tuple[bytes, bytes]], domains: Iterable[str]) -> str | None:
    """The bucket in ``Host: bucket.domain``, None for any other host: the path names the bucket then.

    ``headers`` are raw ASGI headers. Case, port and the dot at the end of a full name do not count; whether what is
    found can be a bucket's name, ``read`` says. The longest of ``domains`` that fits decides.
    """
    hosts = [value.decode("latin-1") for name, value in headers if name.lower() == b"host"]
    if len(hosts) != 1:
        return None
    host = _hostname(hosts[0])
    for domain in sorted({_hostname(domain) for domain in domains}, key=len, reverse=True):
        if host == domain:
            return None
        if host.endswith(f".{domain}"):
            return host[: -len(domain) - 1]
    return None


def read(raw_path: bytes, bucket_of_host: str | None = None) -> tuple[str, str]:
    """Bucket and key; each empty where there is none. ``raw_path`` is without the query, as on the wire.

    ``/b//k`` is the key ``/k``, ``/b/../k`` is the key ``../k``. Raises ``StoreError`` 400 for what names nothing.
    """
    if not raw_path.startswith(b"/"):
        raise _unreadable("Couldn't parse the specified URI.")
    if bucket_of_host is None:
        raw_bucket, slash, raw_key = raw_path[1:].partition(b"/")
        bucket, key = text(raw_bucket), text(raw_key)
        named = bool(bucket or slash)
    else:
        bucket, key, named = bucket_of_host, text(raw_path[1:]), True
    if named:
        check(bucket, key)
    return bucket, key


def check(bucket: str, key: str) -> None:
    """Raise ``StoreError`` 400 where the bucket's name is none by S3's rules, or the key is too long."""
    if bucket.endswith(_ALIASES):
        raise StoreError(
            "InvalidBucketName",
            400,
            "The specified bucket is not valid: it is the alias of an access point. Objects are fenced by the name of "
            "their bucket, so use that.",
        )
    if not _is_bucket(bucket):
        raise StoreError("InvalidBucketName", 400, "The specified bucket is not valid.")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise StoreError("KeyTooLongError", 400, f"Your key is too long: a key has at most {MAX_KEY_BYTES} bytes.")


def text(raw: bytes) -> str:
    """Percent-decoded UTF-8. Raises ``StoreError`` 400 ``InvalidURI``; a plus sign stays one."""
    if _BROKEN_ESCAPE.search(raw):
        raise _unreadable("Couldn't parse the specified URI.")
    try:
        decoded = unquote_to_bytes(raw).decode()
    except UnicodeDecodeError:
        raise _unreadable("The URI must be UTF-8, percent-encoded.") from None
    if "\0" in decoded:  # S3 would take it; the database that keeps the intents cannot
        raise _unreadable("A NUL character cannot be part of a key.")
    return decoded


def _hostname(host: str) -> str:
    return _PORT.sub("", host.strip()).lower().removesuffix(".")


def _is_bucket(name: str) -> bool:
    if not _BUCKET.fullmatch(name) or ".." in name:
        return False
    try:
        ipaddress.IPv4Address(name)
    except ValueError:
        return True
    return False


def _unreadable(message: str) -> StoreError:
    return StoreError("InvalidURI", 400, message)
