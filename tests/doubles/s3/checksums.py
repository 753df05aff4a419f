"""Object checksums: computed, verified, and combined over the parts of an upload as S3 does."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from awscrt import checksums as crt  # type: ignore[import-untyped]  # awscrt ships no types

from tests.doubles.s3.errors import S3Error


class Hasher(Protocol):
    """The methods of hashlib's objects, and of the CRC classes here."""

    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    def __init__(self, function: Callable[[bytes, int], int], width: int) -> None:
        self._function = function
        self._width = width
        self._value = 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._width, "big")


_HASHERS: Mapping[str, Callable[[], Hasher]] = {
    "crc32": lambda: _Crc(zlib.crc32, 4),
    "crc32c": lambda: _Crc(crt.crc32c, 4),
    "crc64nvme": lambda: _Crc(crt.crc64nvme, 8),
    "sha1": hashlib.sha1,
    "sha256": hashlib.sha256,
}
_COMBINATIONS: Mapping[str, Callable[[int, int, int], int]] = {
    "crc32": crt.combine_crc32,
    "crc32c": crt.combine_crc32c,
    "crc64nvme": crt.combine_crc64nvme,
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


def hasher(algorithm: str) -> Hasher:
    """An object that computes the digest piece by piece, MD5 too. Raises InvalidRequest for an unknown algorithm."""
    if algorithm == "md5":
        return hashlib.md5()
    if algorithm not in _HASHERS:
        raise S3Error("InvalidRequest", f"There is no checksum algorithm {algorithm!r}.")
    return _HASHERS[algorithm]()


def digest(data: bytes, algorithm: str) -> bytes:
    """The raw digest of the bytes."""
    computing = hasher(algorithm)
    computing.update(data)
    return computing.digest()


def whole(algorithm: str, raw: bytes) -> Checksum:
    """The checksum of a whole object, from its raw digest."""
    return Checksum(algorithm, base64.b64encode(raw).decode())


def of(data: bytes, algorithm: str = DEFAULT) -> Checksum:
    """The checksum of the bytes. Raises InvalidRequest for an unknown algorithm."""
    return whole(algorithm, digest(data, algorithm))


def is_crc(algorithm: str) -> bool:
    """Whether the checksum of a whole follows from those of its parts."""
    return algorithm in _COMBINATIONS


def combined(algorithm: str, parts: Sequence[tuple[bytes, int]]) -> bytes:
    """The raw CRC of a whole, from the (raw CRC, size) of its parts."""
    value = 0
    for raw, size in parts:
        value = _COMBINATIONS[algorithm](value, int.from_bytes(raw, "big"), size)
    return value.to_bytes(len(parts[0][0]), "big")


def over_parts(parts: Iterable[Checksum]) -> Checksum:
    """The composite checksum: the digest of the parts' raw digests, with their number behind it."""
    checksums = list(parts)
    raw = b"".join(base64.b64decode(each.value) for each in checksums)
    composite = of(raw, checksums[0].algorithm)
    return Checksum(composite.algorithm, f"{composite.value}-{len(checksums)}", "COMPOSITE")


def claimed(headers: Mapping[str, str]) -> Checksum | None:
    """The checksum a request brings in its headers, unverified."""
    for algorithm in _HASHERS:
        value = headers.get(f"x-amz-checksum-{algorithm}")
        if value is not None:
            return Checksum(algorithm, value)
    return None


def verify(digest_of: Callable[[str], bytes], headers: Mapping[str, str]) -> Checksum | None:
    """Check Content-MD5 and x-amz-checksum-* against the body's digests; return the latter.

    Raises BadDigest, InvalidDigest.
    """
    _verify_md5(digest_of, headers.get("content-md5"))
    expected = claimed(headers)
    if expected is not None and whole(expected.algorithm, digest_of(expected.algorithm)) != expected:
        raise S3Error("BadDigest", f"The {expected.algorithm} of the body is not the one in the header.")
    return expected


def _verify_md5(digest_of: Callable[[str], bytes], value: str | None) -> None:
    if value is None:
        return
    try:
        claim = base64.b64decode(value, validate=True)
    except ValueError as error:
        raise S3Error("InvalidDigest") from error
    if len(claim) != 16:
        raise S3Error("InvalidDigest")
    if claim != digest_of("md5"):
        raise S3Error("BadDigest", "The MD5 of the body is not the one in Content-MD5.")
