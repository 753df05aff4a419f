"""Which requests are attempts of one call: SDKs send a request again by themselves, and say so with an id.

The id decides nothing. It serves to tell a refused caller that an earlier attempt had taken effect.
"""

import hashlib
import re
from collections.abc import Iterable

HEADER = b"amz-sdk-invocation-id"
"""All SDKs of AWS send it, with one value for all attempts of a call."""

_SANE = re.compile(rb"[!-~]{1,128}")


def digest(headers: Iterable[tuple[bytes, bytes]], caller: str, bucket: str, key: str) -> str | None:
    """Return what stands for the call in the metadata of the object it writes; None if the client names no call.

    No caller can name the call of another caller, or of another key. ``headers`` are raw, with names in lower case.
    """
    named = [value for name, value in headers if name == HEADER]
    if len(named) != 1 or not _SANE.fullmatch(named[0]):
        return None
    parts = (named[0], caller.encode(), bucket.encode(), key.encode())
    # A hash of hashes: no two calls have one text.
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]
