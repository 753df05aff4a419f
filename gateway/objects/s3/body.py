"""The body of a write is what its sender has declared: framing, length, signatures of chunks, checksums. No I/O.

``Decoder`` removes the framing aws-chunked: chunk by chunk, with signatures and a trailer. The proof is complete before
anything takes effect.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from functools import partial
from typing import Protocol

from awscrt import checksums as crt  # type: ignore[import-untyped]  # awscrt ships no types

from gateway.errors import BodyTooLarge, StoreError

_PREFIX = "x-amz-checksum-"
# The words of S3, by which some clients know an error.
_ONE_CHECKSUM = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
_OTHER_LENGTH = "You did not provide the number of bytes specified by the Content-Length HTTP header"
_TERMINATED = "The request body terminated unexpectedly"
# These begin as a checksum does, and are none. S3 passes over them where an operation does not expect them.
_NO_CHECKSUMS = {"x-amz-checksum-algorithm", "x-amz-checksum-type"}
_SDK_ALGORITHM = "x-amz-sdk-checksum-algorithm"


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


class _XxHash:
    """A checksum of which the library calls the end by another name, and takes only bytes."""

    def __init__(self, create: Callable[[], crt.XXHash]) -> None:
        self._state = create()

    def update(self, data: bytes, /) -> None:
        self._state.update(data)

    def digest(self) -> bytes:
        digest: bytes = self._state.finalize()
        return digest


class Algorithm(StrEnum):
    """S3's checksum algorithms, by the end of their header's name."""

    CRC32 = "crc32"
    CRC32C = "crc32c"
    CRC64NVME = "crc64nvme"
    MD5 = "md5"
    SHA1 = "sha1"
    SHA256 = "sha256"
    SHA512 = "sha512"
    XXHASH128 = "xxhash128"
    XXHASH3 = "xxhash3"
    XXHASH64 = "xxhash64"

    @property
    def header(self) -> str:
        return _PREFIX + self.value


_FACTORIES: dict[Algorithm, Callable[[], _Hash]] = {
    Algorithm.CRC32: partial(_Crc, crt.crc32, 4),
    Algorithm.CRC32C: partial(_Crc, crt.crc32c, 4),
    Algorithm.CRC64NVME: partial(_Crc, crt.crc64nvme, 8),
    # As checksums they guard against accidents. The security of the connection does not depend on them.
    Algorithm.MD5: partial(hashlib.md5, usedforsecurity=False),
    Algorithm.SHA1: partial(hashlib.sha1, usedforsecurity=False),
    Algorithm.SHA256: hashlib.sha256,
    Algorithm.SHA512: hashlib.sha512,
    Algorithm.XXHASH128: partial(_XxHash, crt.XXHash.new_xxhash3_128),
    Algorithm.XXHASH3: partial(_XxHash, crt.XXHash.new_xxhash3_64),
    Algorithm.XXHASH64: partial(_XxHash, crt.XXHash.new_xxhash64),
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

    Raises ``StoreError``: ``InvalidDigest`` or ``InvalidRequest`` (400) for what cannot be true or is not known.
    """
    md5 = headers.get("content-md5")
    content_md5 = None if md5 is None else _decoded(md5, 16, StoreError.known("InvalidDigest"))
    in_header = [name for name in headers if name.startswith(_PREFIX) and name not in _NO_CHECKSUMS]
    in_trailer = [name.strip().lower() for name in headers.get("x-amz-trailer", "").split(",") if name.strip()]
    named = in_header + in_trailer
    if len(named) > 1:
        raise StoreError("InvalidRequest", 400, _ONE_CHECKSUM)
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
        message = "The algorithm type you specified in x-amz-checksum- header is invalid."
        raise StoreError("InvalidRequest", 400, message) from None


def algorithm_named(name: str) -> Algorithm:
    """Return the algorithm that x-amz-checksum-algorithm names. Raises ``StoreError`` 400 for an unknown one."""
    try:
        return Algorithm(name.lower())
    except ValueError:
        known = ", ".join(each.name for each in sorted(Algorithm))
        message = f"Checksum algorithm provided is unsupported. Please try again with any of the valid types: [{known}]"
        raise StoreError("InvalidRequest", 400, message) from None


def checksum_header(algorithm: Algorithm, content: bytes) -> tuple[str, str]:
    computed = _FACTORIES[algorithm]()
    computed.update(content)
    return algorithm.header, _encoded(computed.digest())


def checksum_elements(headers: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[str, str]]:
    """Yield the checksums among the headers of an answer as elements of a document, as in ``ChecksumCRC32``."""
    for name, value in headers:
        end = name.decode("latin-1").lower().partition(_PREFIX)[2]
        if end:
            yield f"Checksum{end.title() if end == 'type' else end.upper()}", value.decode("latin-1")


def _check_named(headers: Mapping[str, str], algorithm: Algorithm | None) -> None:
    """Refuse an algorithm that is named without its checksum: the client would rely on a check that is not made."""
    name = headers.get(_SDK_ALGORITHM)
    if name is None:
        return
    if algorithm is None:
        found = "no corresponding x-amz-checksum-* or x-amz-trailer headers were found"
        raise StoreError("InvalidRequest", 400, f"{_SDK_ALGORITHM} specified, but {found}.")
    if name.lower() != algorithm.value:
        raise StoreError("InvalidRequest", 400, f"Value for {_SDK_ALGORITHM} header is invalid.")


def _value(algorithm: Algorithm, text: str, where: str = "header") -> bytes:
    width = len(_FACTORIES[algorithm]().digest())
    invalid = StoreError("InvalidRequest", 400, f"Value for {algorithm.header} {where} is invalid.")
    return _decoded(text, width, invalid)


def _decoded(text: str, width: int, invalid: StoreError) -> bytes:
    try:
        digest = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != width:
        invalid.facts["reason"] = f"It must be {width} bytes in base64."
        raise invalid
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
            raise StoreError.known("XAmzContentSHA256Mismatch")
        md5 = None if self._md5 is None else self._md5.hexdigest()
        if self._declared.content_md5 is not None and self._declared.content_md5.hex() != md5:
            raise StoreError("BadDigest", 400, "The Content-MD5 you specified did not match what we received.")
        return Proof(self._size, md5, sha256, self._verified(trailers or {}))

    def _verified(self, trailers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        algorithm, digest = self._declared.algorithm, self._declared.digest
        if algorithm is None or self._checksum is None:
            return ()
        if digest is None:
            digest = _value(algorithm, trailers.get(algorithm.header, ""), "trailing header")
        if digest != self._checksum.digest():
            raise StoreError(
                "BadDigest", 400, f"The {algorithm.name} you specified did not match the calculated checksum."
            )
        return ((algorithm.header, _encoded(digest)),)


MAX_LINE = 4096
MAX_TRAILERS = 16

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")
# minio-go ends each line of a trailer with a line feed more, as it is in the text that the signature covers.
_TRAILER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([\x21-\x7e]*)[ \t]*\n?")
_TRAILER_SIGNATURE = "x-amz-trailer-signature"


class Signatures(Protocol):
    """Checks the chain of chunk signatures. Each method raises where the presented signature is wrong."""

    def check_chunk(self, presented: str, sha256: str) -> None: ...

    def check_trailer(self, presented: str, sha256: str) -> None: ...


class _State(Enum):
    SIZE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILER = auto()
    DONE = auto()


class Decoder:
    """Decodes one body.

    ``decoded_length`` is the value of x-amz-decoded-content-length. ``trailers`` are the names that x-amz-trailer
    declares, in lower case; each must come, and no other. ``signatures`` is given where the chunks are signed.
    """

    def __init__(
        self, decoded_length: int, *, trailers: AbstractSet[str] = frozenset(), signatures: Signatures | None = None
    ) -> None:
        self._left = decoded_length
        self._declared = trailers
        self._signatures = signatures
        self._state = _State.SIZE
        self._line_begun = b""
        self._chunk_left = 0
        self._chunk_signature = ""
        self._chunk_hash = hashlib.sha256()
        self._trailers: dict[str, str] = {}

    def feed(self, data: bytes) -> bytes:
        """Return the decoded bytes that ``data`` completes. Raises ``StoreError`` as soon as the framing is wrong.

        Only an incomplete line is kept. So the time taken grows with ``data`` alone, however small its chunks are.
        """
        if self._line_begun:
            data, self._line_begun = self._line_begun + data, b""
        pieces: list[bytes] = []
        position, end = 0, len(data)
        while position < end:
            if self._state is _State.DATA:
                piece = data[position : position + self._chunk_left]
                position += len(piece)
                self._data(piece)
                pieces.append(piece)
            elif self._state is _State.DONE:
                raise _incomplete("The body goes on after its last chunk.")
            else:
                line_end = data.find(b"\r\n", position, position + MAX_LINE + 2)
                if line_end < 0:
                    self._begin_line(data[position:])
                    break
                self._line(data[position:line_end])
                position = line_end + 2
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def finish(self) -> dict[str, str]:
        """Return the trailers by lower-case name, at the end of the body. Raises ``StoreError`` if it ended early."""
        if self._state is not _State.DONE:
            raise _incomplete("The body ended before its last chunk was complete.")
        return self._trailers

    def _begin_line(self, begun: bytes) -> None:
        if len(begun) > MAX_LINE:
            raise _incomplete("A line of the body's framing is too long.")
        self._line_begun = begun

    def _line(self, line: bytes) -> None:
        if self._state is _State.SIZE:
            self._size(line)
        elif self._state is _State.DATA_END:
            self._data_end(line)
        else:
            self._trailer(line)

    def _size(self, line: bytes) -> None:
        match = _SIZE_LINE.fullmatch(line)
        if match is None or (match[2] is None) != (self._signatures is None):
            raise _incomplete("A chunk of the body does not start as it must.")
        self._chunk_left = int(match[1], 16)
        if self._signatures is not None:
            self._chunk_signature = match[2].decode()
            self._chunk_hash = hashlib.sha256()
        if self._chunk_left > self._left:
            raise _of_another_length("The body is longer than x-amz-decoded-content-length says.")
        self._left -= self._chunk_left
        self._state = _State.DATA if self._chunk_left else _State.TRAILER
        if not self._chunk_left:
            self._check_chunk()
            if self._left:
                raise _of_another_length("The body is shorter than x-amz-decoded-content-length says.")

    def _data(self, piece: bytes) -> None:
        self._chunk_left -= len(piece)
        if self._signatures is not None:
            self._chunk_hash.update(piece)
        if not self._chunk_left:
            self._check_chunk()
            self._state = _State.DATA_END

    def _check_chunk(self) -> None:
        if self._signatures is not None:
            self._signatures.check_chunk(self._chunk_signature, self._chunk_hash.hexdigest())

    def _data_end(self, line: bytes) -> None:
        if line:
            raise _incomplete("A chunk of the body is longer than it says.")
        self._state = _State.SIZE

    def _trailer(self, line: bytes) -> None:
        if not line:
            self._end()
            return
        match = _TRAILER_LINE.fullmatch(line)
        name = match[1].decode().lower() if match else ""
        if match is None or name in self._trailers or len(self._trailers) >= MAX_TRAILERS:
            raise _malformed_trailer("A line of the trailer cannot be read.")
        if _TRAILER_SIGNATURE in self._trailers:
            raise _malformed_trailer("The trailer goes on after its signature.")
        self._trailers[name] = match[2].decode()

    def _end(self) -> None:
        signature = self._trailers.pop(_TRAILER_SIGNATURE, None)
        if self._trailers.keys() != self._declared:
            raise _malformed_trailer("The trailer does not have the fields that x-amz-trailer declares.")
        if self._signatures is None:
            if signature is not None:
                raise _malformed_trailer("The trailer is signed, but the request says that it is not.")
        elif self._trailers or signature is not None:
            lines = "".join(f"{name}:{value}\n" for name, value in self._trailers.items())
            self._signatures.check_trailer(signature or "", hashlib.sha256(lines.encode()).hexdigest())
        self._state = _State.DONE


def _incomplete(reason: str) -> StoreError:
    return StoreError("IncompleteBody", 400, _TERMINATED, facts={"reason": reason})


def _of_another_length(reason: str) -> StoreError:
    return StoreError("IncompleteBody", 400, _OTHER_LENGTH, facts={"reason": reason})


def _malformed_trailer(reason: str) -> StoreError:
    return StoreError.known("MalformedTrailerError", facts={"reason": reason})


_DIGITS = frozenset("0123456789")


@dataclass(frozen=True, slots=True)
class VerifiedBody:
    """A body that is what its sender declared: its MD5 and SHA-256 in hex, and checksum headers that are true of it.

    The headers may go to the store.
    """

    content: bytes
    md5: str
    sha256: str
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def size(self) -> int:
        return len(self.content)

    @property
    def content_md5(self) -> tuple[str, str]:
        """The header that vouches for the body: S3 wants one with some documents, whatever else does."""
        return "content-md5", base64.b64encode(bytes.fromhex(self.md5)).decode()


class Inspection:
    """Decodes one body as it passes, and proves it at the end. No I/O.

    ``headers`` are the request's. ``sha256`` (hex) is the hash that its signature covers, ``signatures`` the check of
    its chunks where they are signed; both come from the verified signature. ``max_size`` is in bytes, decoded. Raises
    ``BodyTooLarge``, or ``StoreError`` for a contradictory head, before any of the body is there.
    """

    exact = True

    def __init__(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        sha256: str | None,
        signatures: Signatures | None,
        max_size: int,
    ) -> None:
        named = {name.decode("latin-1").lower(): value.decode("latin-1").strip() for name, value in headers}
        framed = named.get("x-amz-content-sha256", "").startswith("STREAMING-")
        self.declared = declared(named)
        self.length = _length(named, framed=framed)
        """The length of the decoded body that the head declares, in bytes."""
        if self.length > max_size:
            raise BodyTooLarge(f"The body has {self.length} bytes; at most {max_size} are taken.")
        self._left = self.length
        self._signed_sha256 = sha256
        self._decoder = Decoder(self.length, trailers=self.declared.trailers, signatures=signatures) if framed else None
        self._verification = Verification(self.declared, sha256, md5=False, sha256=False)

    def request_digests(self) -> None:
        """Have the proof name MD5 and SHA-256, also where they are not compared. Call this before the first byte."""
        self._verification = Verification(self.declared, self._signed_sha256)

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that have arrived, and return what they decode to. Raises ``StoreError`` for a wrong body."""
        decoded = data if self._decoder is None else self._decoder.feed(data)
        self._left -= len(decoded)
        if self._left < 0:
            raise _of_another_length("The body is longer than its Content-Length says.")
        self._verification.update(decoded)
        return decoded

    def finish(self) -> Proof:
        """Return the proof, at the end. Raises ``StoreError`` where the body ended early or is not what was
        declared.
        """
        trailers = {} if self._decoder is None else self._decoder.finish()
        if self._left:
            raise _of_another_length("The body is shorter than its Content-Length says.")
        return self._verification.finish(trailers)


class FileInspection:
    """Proves the file of a form as it passes, with all its digests. No I/O. Sizes are in bytes.

    ``length``: the most that the file can have by the length of its form. ``longest`` None: ``max_size`` is all that
    limits it.
    """

    exact = False

    def __init__(
        self, declared: Declared, *, length: int, max_size: int, shortest: int = 0, longest: int | None = None
    ) -> None:
        self.declared, self.length = declared, length
        self._max_size, self._shortest = max_size, shortest
        self._longest = max_size if longest is None else min(longest, max_size)
        self._size = 0
        self._verification = Verification(declared)

    def request_digests(self) -> None:
        pass

    def feed(self, data: bytes) -> bytes:
        """Take the bytes that have arrived, and return them. Raises for a file that is too large."""
        self._size += len(data)
        if self._size > self._longest:
            if self._longest == self._max_size:
                raise BodyTooLarge(f"The file has more than {self._max_size} bytes.")
            raise StoreError.known("EntityTooLarge", facts={"max_size_allowed": self._longest})
        self._verification.update(data)
        return data

    def finish(self) -> Proof:
        if self._size < self._shortest:
            facts = {"proposed_size": self._size, "min_size_allowed": self._shortest}
            raise StoreError.known("EntityTooSmall", facts=facts)
        return self._verification.finish()


def whole(content: Iterable[bytes], proof: Proof) -> VerifiedBody:
    assert proof.md5 is not None
    assert proof.sha256 is not None
    return VerifiedBody(b"".join(content), proof.md5, proof.sha256, proof.headers)


def _length(headers: Mapping[str, str], *, framed: bool) -> int:
    if not framed:
        if "x-amz-trailer" in headers:
            raise StoreError("InvalidRequest", 400, "Only a body in chunks has a trailer.")
        if "aws-chunked" in headers.get("content-encoding", "").lower():
            raise StoreError(
                "InvalidRequest", 400, "A body that is aws-chunked needs a STREAMING- x-amz-content-sha256."
            )
    name = "x-amz-decoded-content-length" if framed else "content-length"
    return length_of(name, headers.get(name))


def length_of(name: str, value: str | None) -> int:
    """Return the length in the header ``name``. Raises ``StoreError``: 411 where there is none, else 400."""
    if value is None:
        raise StoreError.known("MissingContentLength", facts={"header": name})
    if not value or len(value) > 18 or not set(value) <= _DIGITS:
        raise StoreError("InvalidArgument", 400, f"The value of {name} is not a length.")
    return int(value)
