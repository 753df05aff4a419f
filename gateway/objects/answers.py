"""What the object store says about a request, reduced to what the protocol decides on. ETags stand without quotes."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took effect. ``etag`` is the key's ETag after it, None where the key is gone.

    ``headers`` are the store's, for what the caller may want to see of them.
    """

    etag: str | None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class NotApplied:
    """The write's condition did not hold (412), it lost a race inside the store (409), or there is no object (404)."""

    status: int
    code: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The store refused the write for a reason that trying again does not change. ``code`` is S3's."""

    status: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Nobody can tell from the answer, if there was one, whether the request took effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class NotSent:
    """The store could not be reached, so nothing of the request has left: it can have no effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Found:
    """The object as it is. What the gateway wrote into its metadata is None where somebody else wrote the object.

    ``size`` is in bytes; ``token`` stands as it was written, in its wire form.
    """

    etag: str
    write_id: str | None = None
    tombstone: bool = False
    resource: str | None = None
    token: str | None = None
    size: int = 0
    date: datetime | None = None
    """The store's own clock, from its Date header."""


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no object at this key."""

    date: datetime | None = None


@dataclass(frozen=True, slots=True)
class Started:
    """A multipart upload has been opened."""

    upload_id: str


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A part has been stored; it takes effect with the completion of its upload."""

    etag: str


WriteAnswer: TypeAlias = Applied | NotApplied | Rejected | NotSent | Unknown
HeadAnswer: TypeAlias = Found | Missing | Unknown
