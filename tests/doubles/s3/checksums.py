"""Object checksums: computed, verified, and combined over the parts of an upload as S3 does."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from awscrt import checksums as crt  # type: ignore[import-untyped]  # awscrt ships no types

from tests.doubles.s3.errors import S3Error

_DIGESTS: Mapping[str, Callable[[bytes], bytes]] = {
    "crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "crc32c": lambda data: crt.crc32c(data).to_bytes(4, "big"),
    "crc64nvme": lambda data: crt.crc64nvme(data).to_bytes(8, "big"),
    "sha1": lambda data: hashlib.sha1(data).digest(),
    "sha256": lambda data: hashlib.sha256(data).digest(),
}
DEFAULT = "crc64nvme"


@dataclass(frozen=True, slots=True)
class Checksum:
    """One checksum: algorithm in lower case, value in base64, over the whole object or over its parts' checksums."""

    algorithm: str
    value: str
    kind: Literal["FULL_OBJECT", "COMPOSITE"] = "FULL_OBJECT"

    def headers(self) -> dict[str, str]:
        return {f"x-amz-checksum-{self.algorithm}": self.value, "x-amz-checksum-type": self.kind}

    @property
    def element(self) -> str:
        """The element's name in documents, e.g. ChecksumCRC32."""
        return f"Checksum{self.algorithm.upper()}"


def of(data: bytes, algorithm: str = DEFAULT) -> Checksum:
    """The checksum of the bytes. Raises InvalidRequest for an unknown algorithm."""
    digest = _DIGESTS.get(algorithm)
    if digest is None:
        raise S3Error("InvalidRequest", f"There is no checksum algorithm {algorithm!r}.")
    return Checksum(algorithm, base64.b64encode(digest(data)).decode())


def over_parts(parts: Iterable[Checksum]) -> Checksum:
    """The composite checksum: the digest of the parts' raw digests, with their number behind it."""
    checksums = list(parts)
    raw = b"".join(base64.b64decode(each.value) for each in checksums)
    whole = of(raw, checksums[0].algorithm)
    return Checksum(whole.algorithm, f"{whole.value}-{len(checksums)}", "COMPOSITE")


def claimed(headers: Mapping[str, str]) -> Checksum | None:
    """The checksum a request brings in its headers, unverified."""
    for algorithm in _DIGESTS:
        value = headers.get(f"x-amz-checksum-{algorithm}")
        if value is not None:
            return Checksum(algorithm, value)
    return None


def verify(data: bytes, headers: Mapping[str, str]) -> Checksum | None:
    """Check Content-MD5 and x-amz-checksum-* against the bytes; return the latter. Raises BadDigest, InvalidDigest."""
    _verify_md5(data, headers.get("content-md5"))
    expected = claimed(headers)
    if expected is not None and of(data, expected.algorithm) != expected:
        raise S3Error("BadDigest", f"The {expected.algorithm} of the body is not the one in the header.")
    return expected


def _verify_md5(data: bytes, value: str | None) -> None:
    if value is None:
        return
    try:
        digest = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise S3Error("InvalidDigest") from error
    if len(digest) != 16:
        raise S3Error("InvalidDigest")
    if digest != hashlib.md5(data).digest():
        raise S3Error("BadDigest", "The MD5 of the body is not the one in Content-MD5.")
