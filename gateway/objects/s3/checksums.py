"""The hashes that a client declares for its body, in a header or in the trailer, and whether they are true."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from awscrt import checksums as crt  # type: ignore[import-untyped]  # awscrt ships no types

from gateway.errors import StoreError

_PREFIX = "x-amz-checksum-"
_NAMED = {"x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm"}


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...

    def digest(self) -> bytes: ...


class _Crc:
    """A checksum of ``width`` bytes with the interface of a hash."""

    def __init__(self, function: Callable[[bytes, int], int], width: int) -> None:
        self._function, self._width, self._value = function, width, 0

    def update(self, data: bytes, /) -> None:
        self._value = self._function(data, self._value)

    def digest(self) -> bytes:
        return self._value.to_bytes(self._width, "big")


class Algorithm(StrEnum):
    """S3's checksum algorithms, by the end of their header's name."""

    CRC32 = "crc32"
    CRC32C = "crc32c"
    CRC64NVME = "crc64nvme"
    SHA1 = "sha1"
    SHA256 = "sha256"

    @property
    def header(self) -> str:
        return _PREFIX + self.value


_FACTORIES: dict[Algorithm, Callable[[], _Hash]] = {
    Algorithm.CRC32: partial(_Crc, crt.crc32, 4),
    Algorithm.CRC32C: partial(_Crc, crt.crc32c, 4),
    Algorithm.CRC64NVME: partial(_Crc, crt.crc64nvme, 8),
    # As checksums they guard against accidents. The security of the connection does not depend on them.
    Algorithm.SHA1: partial(hashlib.sha1, usedforsecurity=False),
    Algorithm.SHA256: hashlib.sha256,
}


@dataclass(frozen=True, slots=True)
class Declared:
    """The checksums of the body that a request's head declares.

    ``digest`` is None where the value of ``algorithm`` comes in the trailer; ``content_md5`` is that header's.
    """

    algorithm: Algorithm | None = None
    digest: bytes | None = None
    content_md5: bytes | None = None

    @property
    def trailers(self) -> frozenset[str]:
        """The names of the fields that the trailer must have."""
        trailing = self.algorithm is not None and self.digest is None
        return frozenset({self.algorithm.header}) if trailing and self.algorithm else frozenset()

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """The checksums of the head alone, as headers. The store can check them too, before the gateway has the
        proof.
        """
        content_md5 = () if self.content_md5 is None else (("content-md5", _encoded(self.content_md5)),)
        if self.algorithm is None or self.digest is None:
            return content_md5
        return (*content_md5, (self.algorithm.header, _encoded(self.digest)))


@dataclass(frozen=True, slots=True)
class Proof:
    """The facts of a verified body: its size in bytes, and the checksum headers that may be sent on with it.

    MD5 and SHA-256 are in hex, None where they were not requested.
    """

    size: int
    md5: str | None
    sha256: str | None
    headers: tuple[tuple[str, str], ...]


def declared(headers: Mapping[str, str]) -> Declared:
    """Read the declarations of a request, given its headers by lower-case name, each once.

    Raises ``StoreError``: ``InvalidDigest`` or ``InvalidRequest`` (400) for what cannot be true, ``NotImplemented``
    (501) for an algorithm that is not known.
    """
    md5 = headers.get("content-md5")
    content_md5 = None if md5 is None else _decoded("content-md5", md5, 16, "InvalidDigest")
    in_header = [name for name in headers if name.startswith(_PREFIX) and name not in _NAMED]
    in_trailer = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",") if name.strip()]
    named = in_header + in_trailer
    if len(named) > 1:
        raise StoreError("InvalidRequest", 400, "Expecting a single x-amz-checksum- header or trailer.")
    algorithm = _algorithm(named[0]) if named else None
    _check_named(headers, algorithm)
    if algorithm is None or in_trailer:
        return Declared(algorithm, None, content_md5)
    return Declared(algorithm, _value(algorithm, headers[algorithm.header]), content_md5)


def _algorithm(name: str) -> Algorithm:
    if not name.startswith(_PREFIX):
        raise StoreError("InvalidRequest", 400, "The value specified in the x-amz-trailer header is not supported.")
    try:
        return Algorithm(name.removeprefix(_PREFIX))
    except ValueError:
        raise StoreError("NotImplemented", 501, f"The checksum {name[:64]!a} is not implemented.") from None


def _check_named(headers: Mapping[str, str], algorithm: Algorithm | None) -> None:
    """Refuse an algorithm that is named without its checksum: the client would rely on a check that is not made."""
    for name in _NAMED & headers.keys():
        if algorithm is None or headers[name].lower() != algorithm.value:
            raise StoreError(
                "InvalidRequest", 400, f"{name} is there, but no x-amz-checksum- header or trailer of that algorithm."
            )


def _value(algorithm: Algorithm, text: str) -> bytes:
    width = len(_FACTORIES[algorithm]().digest())
    return _decoded(algorithm.header, text, width, "InvalidRequest")


def _decoded(name: str, text: str, width: int, code: str) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != width:
        raise StoreError(code, 400, f"The value of {name} is not {width} bytes in base64.")
    return digest


def _encoded(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


class Verification:
    """Hashes a body as it arrives and compares with what was declared.

    ``signed_sha256`` (hex) is the hash of the body that its signature covers, if it covers it. ``md5`` and ``sha256``
    request these digests. Hashing costs processor time, so no other digest is computed unless it is to be compared. The
    work is done on the event loop: a piece takes 0.1 ms at the most, and a thread switch takes as long.
    """

    def __init__(
        self, declared: Declared, signed_sha256: str | None = None, *, md5: bool = True, sha256: bool = True
    ) -> None:
        self._declared = declared
        self._signed = signed_sha256
        self._size = 0
        self._md5 = hashlib.md5(usedforsecurity=False) if md5 or declared.content_md5 is not None else None
        self._sha256 = hashlib.sha256() if sha256 or signed_sha256 is not None else None
        self._checksum = None if declared.algorithm is None else _FACTORIES[declared.algorithm]()
        self._updates = [each.update for each in (self._md5, self._sha256, self._checksum) if each is not None]

    def update(self, data: bytes) -> None:
        self._size += len(data)
        for update in self._updates:
            update(data)

    def finish(self, trailers: Mapping[str, str] | None = None) -> Proof:
        """Compare. Raises ``StoreError`` 400: ``BadDigest``, or ``XAmzContentSHA256Mismatch`` for the signed hash."""
        sha256 = None if self._sha256 is None else self._sha256.hexdigest()
        if self._signed is not None and not hmac.compare_digest(self._signed, sha256 or ""):
            raise StoreError(
                "XAmzContentSHA256Mismatch", 400, "The provided x-amz-content-sha256 does not match what was computed."
            )
        md5 = None if self._md5 is None else self._md5.hexdigest()
        if self._declared.content_md5 is not None and self._declared.content_md5.hex() != md5:
            raise StoreError("BadDigest", 400, "The Content-MD5 you specified did not match what we received.")
        return Proof(self._size, md5, sha256, self._verified(trailers or {}))

    def _verified(self, trailers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        algorithm, digest = self._declared.algorithm, self._declared.digest
        if algorithm is None or self._checksum is None:
            return ()
        if digest is None:
            digest = _value(algorithm, trailers.get(algorithm.header, ""))
        if digest != self._checksum.digest():
            raise StoreError(
                "BadDigest", 400, f"The {algorithm.name} you specified did not match the calculated checksum."
            )
        return ((algorithm.header, _encoded(digest)),)
