"""The aws-chunked framing of a body: chunk by chunk, with signatures and a trailer. No I/O."""

import hashlib
import re
from collections.abc import Set as AbstractSet
from enum import Enum, auto
from typing import Protocol

from gateway.errors import StoreError

MAX_LINE = 4096
MAX_TRAILERS = 16

_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;chunk-signature=([0-9a-f]{64}))?")
_TRAILER_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([\x21-\x7e]*)[ \t]*")
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
            raise StoreError("InvalidChunkSizeError", 400, "A chunk of the body does not start as it must.")
        self._chunk_left = int(match[1], 16)
        if self._signatures is not None:
            self._chunk_signature = match[2].decode()
            self._chunk_hash = hashlib.sha256()
        if self._chunk_left > self._left:
            raise _incomplete("The body is longer than x-amz-decoded-content-length says.")
        self._left -= self._chunk_left
        self._state = _State.DATA if self._chunk_left else _State.TRAILER
        if not self._chunk_left:
            self._check_chunk()
            if self._left:
                raise _incomplete("The body is shorter than x-amz-decoded-content-length says.")

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
            raise StoreError("InvalidChunkSizeError", 400, "A chunk of the body is longer than it says.")
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


def _incomplete(message: str) -> StoreError:
    return StoreError("IncompleteBody", 400, message)


def _malformed_trailer(message: str) -> StoreError:
    return StoreError("MalformedTrailerError", 400, message)
