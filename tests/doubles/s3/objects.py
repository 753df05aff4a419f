"""The entries of the store and its log: contents, objects, delete markers, mutations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tests.doubles.s3.bodies import Body
from tests.doubles.s3.checksums import Checksum
from tests.doubles.s3.conditions import Condition
from tests.doubles.s3.operations import Operation

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
