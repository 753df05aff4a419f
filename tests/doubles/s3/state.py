"""The store itself: buckets, objects, and the log of what took effect. No I/O, no clock; every write is one step.

It can be driven without HTTP, e.g. by a model: `Store().put("bucket", "key", Content(b"…"), condition, origin)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from tests.doubles.s3.behaviour import Behaviour
from tests.doubles.s3.conditions import UNCONDITIONAL, Condition, refusal_of_delete, refusal_of_write
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.objects import NULL_VERSION, Content, DeleteMarker, Mutation, Origin, StoredObject, Version
from tests.doubles.s3.operations import Operation
from tests.doubles.s3.uploads import Part, Upload, assemble, etag_of_parts
from tests.doubles.s3.versions import Bucket, Versioning

__all__ = ["Content", "Mutation", "Origin", "Store", "StoredObject"]


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

    def delete_bucket(self, name: str) -> None:
        """Raises NoSuchBucket, BucketNotEmpty: delete markers count too."""
        if self.bucket(name).history:
            raise S3Error("BucketNotEmpty", BucketName=name)
        del self.buckets[name]

    def versioning(self, bucket: str) -> Versioning:
        """Whether the bucket keeps versions."""
        return self.bucket(bucket).versioning or ("Enabled" if self.behaviour.versioned else "")

    def get(self, bucket: str, key: str, version_id: str | None = None) -> StoredObject:
        """Raises NoSuchBucket, NoSuchKey, NoSuchVersion, MethodNotAllowed."""
        return self.bucket(bucket).find(key, version_id)

    def check(
        self, operation: Operation, bucket: str, key: str, condition: Condition, upload: Upload | None = None
    ) -> None:
        """Judge a condition against the present state. Raises what AWS answers."""
        place = self.bucket(bucket)
        stored = place.objects.get(key)
        current = stored.etag if stored is not None else None
        if operation in (Operation.DELETE_OBJECT, Operation.DELETE_OBJECTS):
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
        etag = content.whole.digest("md5").hex()
        return self._store(operation, bucket, key, content, etag, condition, origin)

    def delete(
        self,
        bucket: str,
        key: str,
        condition: Condition,
        origin: Origin,
        operation: Operation = Operation.DELETE_OBJECT,
    ) -> DeleteMarker | None:
        """Remove an object if the condition holds; a bucket with versions gets a delete marker instead.

        Without versions, removing what is not there has no effect and is not logged.
        """
        self.check(operation, bucket, key, condition)
        place = self.bucket(bucket)
        if self.versioning(bucket):
            marker = DeleteMarker(key, origin.now, self._sequence + 1, self._version_id(place, key))
            place.add(marker)
            self._log(operation, place, key, None, condition, origin, marker.version_id)
            return marker
        stored = place.objects.get(key)
        if stored is not None:
            place.remove(stored)
            self._log(operation, place, key, None, condition, origin, stored.version_id)
        return None

    def delete_version(
        self, bucket: str, key: str, version_id: str, origin: Origin, operation: Operation = Operation.DELETE_OBJECT
    ) -> Version | None:
        """Remove one version for good and return it; one that is not there has no effect and is not logged."""
        place = self.bucket(bucket)
        version = place.version(key, version_id)
        if version is not None:
            place.remove(version)
            self._log(operation, place, key, None, UNCONDITIONAL, origin, version_id, changes=False)
        return version

    def amend(
        self,
        operation: Operation,
        bucket: str,
        key: str,
        version_id: str | None,
        origin: Origin,
        change: Callable[[Content], Content],
    ) -> StoredObject:
        """Change what stands beside an object's bytes: tags, ACL, legal hold, retention. ETag and date stay."""
        place = self.bucket(bucket)
        stored = place.find(key, version_id)
        amended = replace(stored, content=change(stored.content))
        place.amend(stored, amended)
        left = stored.version_id, amended.content
        self._log(operation, place, key, stored.etag, UNCONDITIONAL, origin, *left, changes=False)
        return amended

    def initiate(self, bucket: str, key: str, properties: Content, origin: Origin, checksum: tuple[str, str]) -> Upload:
        """Begin an upload; the body of `properties` is not used. `checksum` is the algorithm and the kind."""
        place = self.bucket(bucket)
        self._sequence += 1
        identity = hashlib.sha256(f"{bucket}/{key}#{self._sequence}".encode()).hexdigest()
        upload = Upload(identity, key, properties, origin.now, self._sequence, checksum[0], checksum[1])
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
        unkept = None if body.kept else body
        content = replace(upload.properties, body=body.data, checksum=checksum, unkept=unkept)
        place.uploads.end(upload)
        etag = etag_of_parts(parts)
        return self._store(Operation.COMPLETE_UPLOAD, bucket, key, content, etag, condition, origin)

    def abort(self, bucket: str, key: str, upload_id: str, now: datetime) -> None:
        """Give an upload up; it lives on for the behaviour's delay and looks. Raises NoSuchUpload."""
        traits = self.behaviour
        self.bucket(bucket).uploads.abort(key, upload_id, now, traits.abort_delay, traits.lingering_uploads)

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
        if self.behaviour.etags == "unique" and content.headers.get("x-amz-server-side-encryption") != "AES256":
            _, dash, count = etag.partition("-")
            etag = hashlib.md5(f"{bucket}/{key}#{self._sequence}".encode()).hexdigest() + dash + count
        version_id = self._version_id(place, key)
        stored = StoredObject(key, content, etag, origin.now, self._sequence + 1, version_id)
        place.add(stored)
        self._log(operation, place, key, etag, condition, origin, version_id, content)
        return stored

    def _version_id(self, place: Bucket, key: str) -> str:
        """That of the version which the next step makes."""
        if self.versioning(place.name) != "Enabled":
            return NULL_VERSION
        return hashlib.md5(f"{place.name}/{key}@{self._sequence + 1}".encode()).hexdigest()

    def _log(
        self,
        operation: Operation,
        place: Bucket,
        key: str,
        etag: str | None,
        condition: Condition,
        origin: Origin,
        version_id: str,
        content: Content | None = None,
        *,
        changes: bool = True,
    ) -> None:
        """Log a step. `changes` says whether the guard of a conditional completion notices it.

        No recording shows it for the removal of a version, so the double acts as the weaker store.
        """
        self._sequence += 1
        if changes:
            place.changed[key] = self._sequence
        shown = version_id if self.versioning(place.name) else None
        source = (origin.write_id, etag, condition, origin.signed_at)
        left = ({}, {}) if content is None else (content.metadata, content.tags)
        self.mutations.append(Mutation(self._sequence, origin.now, operation, place.name, key, *source, shown, *left))
