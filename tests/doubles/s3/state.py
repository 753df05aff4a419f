"""The store itself: buckets, objects, and the log of what took effect. No I/O, no clock; every write is one step.

It can be driven without HTTP, e.g. by a model: `Store().put("bucket", "key", Content(b"…"), condition, origin)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tests.doubles.s3.behaviour import Behaviour
from tests.doubles.s3.checksums import Checksum
from tests.doubles.s3.conditions import Condition, refusal_of_delete, refusal_of_write
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.operations import Operation
from tests.doubles.s3.uploads import Part, Upload, Uploads, assemble, etag_of_parts


@dataclass(frozen=True, slots=True)
class Content:
    """What a write brings: the bytes, the system headers that are kept, the user's metadata, a checksum."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    checksum: Checksum | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a write comes from, for the log: when it is applied, whose it is, when its request was signed."""

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


@dataclass(frozen=True, slots=True)
class Mutation:
    """One write or delete that took effect. `etag` is what it left, None for a delete; `signed_at` is x-amz-date."""

    sequence: int
    time: datetime
    operation: Operation
    bucket: str
    key: str
    write_id: str | None
    etag: str | None
    condition: Condition
    signed_at: str | None


@dataclass(slots=True)
class Bucket:
    """One bucket. `changed` holds for each key the sequence of its last mutation, deletes included."""

    name: str
    created: datetime
    objects: dict[str, StoredObject] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    uploads: Uploads = field(default_factory=Uploads)


class Store:
    """Everything the double remembers."""

    def __init__(self, behaviour: Behaviour | None = None) -> None:
        self.behaviour = behaviour or Behaviour()
        self.buckets: dict[str, Bucket] = {}
        self.mutations: list[Mutation] = []
        self._sequence = 0

    @property
    def sequence(self) -> int:
        """The number of the last step; initiating an upload is a step too, but no mutation."""
        return self._sequence

    def create_bucket(self, name: str, now: datetime) -> Bucket:
        """Make the bucket, or return the one that is there."""
        return self.buckets.setdefault(name, Bucket(name, now))

    def bucket(self, name: str) -> Bucket:
        """Raises NoSuchBucket."""
        if name not in self.buckets:
            raise S3Error("NoSuchBucket", BucketName=name)
        return self.buckets[name]

    def get(self, bucket: str, key: str) -> StoredObject:
        """Raises NoSuchBucket, NoSuchKey."""
        stored = self.bucket(bucket).objects.get(key)
        if stored is None:
            raise S3Error("NoSuchKey", Key=key)
        return stored

    def check(
        self, operation: Operation, bucket: str, key: str, condition: Condition, upload: Upload | None = None
    ) -> None:
        """Judge a condition against the present state. Raises what AWS answers."""
        place = self.bucket(bucket)
        stored = place.objects.get(key)
        current = stored.etag if stored is not None else None
        if operation is Operation.DELETE_OBJECT:
            refusal = refusal_of_delete(condition, current)
        else:
            changed = upload is not None and place.changed.get(key, 0) > upload.initiated_after
            changed = changed and self.behaviour.guard_initiation
            refusal = refusal_of_write(condition, current, changed_since_initiation=changed)
        if refusal is not None:
            raise S3Error(refusal.code, Key=key, Condition=refusal.header)

    def put(
        self,
        bucket: str,
        key: str,
        content: Content,
        condition: Condition,
        origin: Origin,
        operation: Operation = Operation.PUT_OBJECT,
    ) -> StoredObject:
        """Write an object whole (PutObject, CopyObject) if the condition holds."""
        self.check(operation, bucket, key, condition)
        etag = hashlib.md5(content.body).hexdigest()
        return self._store(operation, bucket, key, content, etag, condition, origin)

    def delete(self, bucket: str, key: str, condition: Condition, origin: Origin) -> None:
        """Remove an object if the condition holds; removing what is not there has no effect and is not logged."""
        self.check(Operation.DELETE_OBJECT, bucket, key, condition)
        place = self.bucket(bucket)
        if place.objects.pop(key, None) is not None:
            self._log(Operation.DELETE_OBJECT, place, key, None, condition, origin)

    def initiate(self, bucket: str, key: str, properties: Content, origin: Origin, checksum: tuple[str, str]) -> Upload:
        """Begin an upload; the body of `properties` is not used. `checksum` is the algorithm and the kind."""
        place = self.bucket(bucket)
        self._sequence += 1
        identity = hashlib.sha256(f"{bucket}/{key}#{self._sequence}".encode()).hexdigest()
        upload = Upload(
            identity, key, properties.headers, properties.metadata, origin.now, self._sequence, checksum[0], checksum[1]
        )
        place.uploads.add(upload)
        return upload

    def add_part(self, bucket: str, key: str, upload_id: str, part: Part, now: datetime) -> None:
        """Keep a part, in place of an earlier one of its number. Raises NoSuchUpload."""
        self.bucket(bucket).uploads.find(key, upload_id, now).parts[part.number] = part

    def complete(
        self,
        bucket: str,
        key: str,
        upload_id: str,
        chosen: Sequence[tuple[int, str]],
        condition: Condition,
        origin: Origin,
    ) -> StoredObject:
        """Make the object out of the chosen (part number, ETag) pairs if the condition holds at this moment."""
        place = self.bucket(bucket)
        upload = place.uploads.find(key, upload_id, origin.now)
        parts = upload.choose(chosen, self.behaviour.minimum_part_size)
        self.check(Operation.COMPLETE_UPLOAD, bucket, key, condition, upload)
        body, checksum = assemble(upload, parts)
        content = Content(body, upload.headers, upload.metadata, checksum)
        place.uploads.end(upload)
        etag = etag_of_parts(parts)
        return self._store(Operation.COMPLETE_UPLOAD, bucket, key, content, etag, condition, origin)

    def abort(self, bucket: str, key: str, upload_id: str, now: datetime) -> None:
        """Give an upload up; it lives on for the behaviour's `abort_delay`. Raises NoSuchUpload."""
        self.bucket(bucket).uploads.abort(key, upload_id, now, self.behaviour.abort_delay)

    def _store(
        self,
        operation: Operation,
        bucket: str,
        key: str,
        content: Content,
        etag: str,
        condition: Condition,
        origin: Origin,
    ) -> StoredObject:
        place = self.bucket(bucket)
        if self.behaviour.etags == "unique":
            _, dash, count = etag.partition("-")
            etag = hashlib.md5(f"{bucket}/{key}#{self._sequence}".encode()).hexdigest() + dash + count
        self._log(operation, place, key, etag, condition, origin)
        stored = StoredObject(key, content, etag, origin.now, self._sequence)
        place.objects[key] = stored
        return stored

    def _log(
        self, operation: Operation, place: Bucket, key: str, etag: str | None, condition: Condition, origin: Origin
    ) -> None:
        self._sequence += 1
        place.changed[key] = self._sequence
        self.mutations.append(
            Mutation(
                self._sequence,
                origin.now,
                operation,
                place.name,
                key,
                origin.write_id,
                etag,
                condition,
                origin.signed_at,
            )
        )
