"""The contents of the store and its log: bodies, checksums, objects, delete markers, mutations."""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, Self

from awscrt import checksums as crt  # type: ignore[import-untyped]  # awscrt ships no types

from tests.doubles.s3.conditions import Condition
from tests.doubles.s3.operations import Operation, S3Error


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
DEFAULT_CHECKSUM = "crc64nvme"


@dataclass(frozen=True, slots=True)
class Checksum:
    """One checksum: algorithm in lower case, value in base64, over the whole object or over its parts'"""

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


def checksum_of(data: bytes, algorithm: str = DEFAULT_CHECKSUM) -> Checksum:
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
    composite = checksum_of(raw, checksums[0].algorithm)
    return Checksum(composite.algorithm, f"{composite.value}-{len(checksums)}", "COMPOSITE")


def claimed_checksum(headers: Mapping[str, str]) -> Checksum | None:
    """The checksum a request brings in its headers, unverified."""
    for algorithm in _HASHERS:
        value = headers.get(f"x-amz-checksum-{algorithm}")
        if value is not None:
            return Checksum(algorithm, value)
    return None


def verify_digests(digest_of: Callable[[str], bytes], headers: Mapping[str, str]) -> Checksum | None:
    """Check Content-MD5 and x-amz-checksum-* against the body's digests; return the latter.

    Raises BadDigest, InvalidDigest.
    """
    _verify_md5(digest_of, headers.get("content-md5"))
    expected = claimed_checksum(headers)
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


@dataclass(frozen=True, slots=True)
class Body:
    """The bytes of a request, a part or an object. `digests` (by algorithm, raw) is what is known of an unkept one."""

    size: int
    data: bytes = b""
    kept: bool = True
    digests: Mapping[str, bytes] = field(default_factory=dict)

    @classmethod
    def of(cls, data: bytes) -> Self:
        """A kept body."""
        return cls(len(data), data)

    def digest(self, algorithm: str) -> bytes:
        """Return the raw digest. A missing digest of an unkept body is made up from its known ones."""
        if self.kept:
            return digest(self.data, algorithm)
        return self.digests.get(algorithm) or digest(self._identity(), algorithm)

    def checksum(self, algorithm: str) -> Checksum:
        """The checksum over the whole. Raises InvalidRequest for an unknown algorithm."""
        return whole(algorithm, self.digest(algorithm))

    def cut(self, start: int, stop: int) -> Body:
        """The bytes from start up to stop; the digests of a piece of an unkept body are made up."""
        if self.kept:
            return Body.of(self.data[start:stop])
        if (start, stop) == (0, self.size):
            return self
        made_up = hashlib.md5(b"%s %d %d" % (self._identity(), start, stop)).digest()
        return Body(stop - start, kept=False, digests={"md5": made_up})

    def _identity(self) -> bytes:
        return repr((self.size, sorted(self.digests.items()))).encode()


class Intake:
    """Takes a body in piece by piece; computes the digests that will be asked for where it does not keep it."""

    def __init__(self, algorithms: Iterable[str], *, keeps: bool) -> None:
        self._keeps = keeps
        self._size = 0
        self._pieces: list[bytes] = []
        self._hashers = {} if keeps else {name: hasher(name) for name in set(algorithms)}

    def add(self, piece: bytes) -> None:
        """Take the next piece."""
        self._size += len(piece)
        if self._keeps:
            self._pieces.append(piece)
        for hasher in self._hashers.values():
            hasher.update(piece)

    def body(self) -> Body:
        """Return the body taken in."""
        if self._keeps:
            return Body.of(b"".join(self._pieces))
        digests = {name: hasher.digest() for name, hasher in self._hashers.items()}
        return Body(self._size, kept=False, digests=digests)


def joined(bodies: Sequence[Body], algorithm: str) -> Body:
    """The bodies one behind the other. Of unkept ones the checksum of this algorithm is known, if it is a CRC."""
    if all(body.kept for body in bodies):
        return Body.of(b"".join(body.data for body in bodies))
    digests = {"md5": hashlib.md5(b"".join(body.digest("md5") for body in bodies)).digest()}
    if is_crc(algorithm):
        digests[algorithm] = combined(algorithm, [(body.digest(algorithm), body.size) for body in bodies])
    return Body(sum(body.size for body in bodies), kept=False, digests=digests)


# The version id of what was written while the bucket kept no versions.
NULL_VERSION = "null"


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a write: the bytes, the kept system headers, the user's metadata, a checksum, tags.

    `documents` are the ACL, the legal hold and the retention, each as it was sent, by the name of its subresource.
    `unkept` stands in for the bytes if the store does not keep them.
    """

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    documents: Mapping[str, bytes] = field(default_factory=dict)
    unkept: Body | None = None

    @property
    def whole(self) -> Body:
        """The bytes, or what is known of them."""
        return self.unkept or Body.of(self.body)

    @property
    def size(self) -> int:
        """In bytes."""
        return self.unkept.size if self.unkept else len(self.body)


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a write, for the log: the time of its effect, its id, and the time of its request's signature."""

    now: datetime
    write_id: str | None = None
    signed_at: str | None = None


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as it stands. `etag` is bare; `sequence` is that of the mutation that made it."""

    key: str
    content: Content
    etag: str
    modified: datetime
    sequence: int
    version_id: str = NULL_VERSION


@dataclass(frozen=True, slots=True)
class DeleteMarker:
    """The marker that a delete leaves in a bucket with versions."""

    key: str
    modified: datetime
    sequence: int
    version_id: str


Version = StoredObject | DeleteMarker


@dataclass(frozen=True, slots=True)
class Mutation:
    """One write, delete or amendment that took effect. `etag` is what it left, None for a delete.

    `version_id` is the version that was made, amended or removed, None in a bucket that never had versions. `metadata`
    are those of the object that was written, `tags` those it has then.
    """

    sequence: int
    time: datetime
    operation: Operation
    bucket: str
    key: str
    write_id: str | None
    etag: str | None
    condition: Condition
    signed_at: str | None
    version_id: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
