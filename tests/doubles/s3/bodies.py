"""Bodies: kept, or only counted and hashed while they pass, so that one of many gigabytes costs no memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from tests.doubles.s3 import checksums
from tests.doubles.s3.checksums import Checksum


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
            return checksums.digest(self.data, algorithm)
        return self.digests.get(algorithm) or checksums.digest(self._identity(), algorithm)

    def checksum(self, algorithm: str) -> Checksum:
        """The checksum over the whole. Raises InvalidRequest for an unknown algorithm."""
        return checksums.whole(algorithm, self.digest(algorithm))

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
        self._hashers = {} if keeps else {name: checksums.hasher(name) for name in set(algorithms)}

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
    if checksums.is_crc(algorithm):
        digests[algorithm] = checksums.combined(algorithm, [(body.digest(algorithm), body.size) for body in bodies])
    return Body(sum(body.size for body in bodies), kept=False, digests=digests)
