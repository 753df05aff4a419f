"""The store itself: buckets, versions, uploads, and the log of what took effect. No I/O, no clock; a write is one step.

It can be driven without HTTP, e.g. by a model: `Store().put("bucket", "key", Content(b"…"), condition, origin)`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from tests.doubles.s3.conditions import UNCONDITIONAL, Behaviour, Condition, bare, refusal_of_delete, refusal_of_write
from tests.doubles.s3.objects import (
    NULL_VERSION,
    Body,
    Checksum,
    Content,
    DeleteMarker,
    Mutation,
    Origin,
    StoredObject,
    Version,
    joined,
    over_parts,
)
from tests.doubles.s3.operations import Operation, S3Error


@dataclass(frozen=True, slots=True)
class Part:
    """One uploaded part; `checksum` is in the upload's algorithm."""

    number: int
    whole: Body
    etag: str
    modified: datetime
    checksum: Checksum

    @property
    def body(self) -> bytes:
        """The bytes; nothing where the store does not keep them."""
        return self.whole.data


@dataclass(slots=True)
class Upload:
    """One upload. `initiated_after` is the store's sequence at its CreateMultipartUpload."""

    upload_id: str
    key: str
    properties: Content
    initiated: datetime
    initiated_after: int
    algorithm: str
    kind: str
    parts: dict[int, Part] = field(default_factory=dict)
    gone_at: datetime | None = None

    @property
    def metadata(self) -> Mapping[str, str]:
        """The user's metadata of the object to be."""
        return self.properties.metadata

    def choose(self, chosen: Sequence[tuple[int, str]], minimum_size: int) -> list[Part]:
        """The parts a completion names. Raises InvalidPartOrder, InvalidPart, EntityTooSmall."""
        numbers = [number for number, _ in chosen]
        if not chosen or numbers != sorted(set(numbers)):
            raise S3Error("InvalidPartOrder" if chosen else "MalformedXML")
        parts = [self._part(number, etag) for number, etag in chosen]
        if any(part.whole.size < minimum_size for part in parts[:-1]):
            raise S3Error("EntityTooSmall", f"Every part but the last has at least {minimum_size} bytes.")
        return parts

    def _part(self, number: int, etag: str) -> Part:
        part = self.parts.get(number)
        if part is None or part.etag != bare(etag):
            raise S3Error("InvalidPart", PartNumber=str(number), UploadId=self.upload_id)
        return part


class Uploads:
    """The uploads of a bucket, and which ids were aborted."""

    def __init__(self) -> None:
        self._running: dict[str, Upload] = {}
        self._aborted: set[str] = set()

    def add(self, upload: Upload) -> None:
        """Begin it."""
        self._running[upload.upload_id] = upload

    def find(self, key: str, upload_id: str, now: datetime) -> Upload:
        """Raises NoSuchUpload."""
        upload = self.get(upload_id, now)
        if upload is None or upload.key != key:
            raise S3Error("NoSuchUpload", UploadId=upload_id)
        return upload

    def get(self, upload_id: str, now: datetime) -> Upload | None:
        """The upload, unless it is completed or gone."""
        upload = self._running.get(upload_id)
        return upload if upload is not None and _is_alive(upload, now) else None

    def running(self, now: datetime) -> list[Upload]:
        """Every upload that is neither completed nor gone, ordered by key and then by age."""
        alive = [each for each in self._running.values() if _is_alive(each, now)]
        return sorted(alive, key=lambda upload: (upload.key.encode(), upload.initiated_after))

    def end(self, upload: Upload) -> None:
        """Forget a completed upload."""
        del self._running[upload.upload_id]

    def abort(self, key: str, upload_id: str, now: datetime, delay: float) -> None:
        """Let the upload go after the delay (seconds). A second abort succeeds, as on AWS.

        Raises NoSuchUpload.
        """
        if upload_id in self._aborted:
            return
        upload = self.find(key, upload_id, now)
        upload.gone_at = now + timedelta(seconds=delay)
        self._aborted.add(upload_id)


def _is_alive(upload: Upload, now: datetime) -> bool:
    """An aborted one is until its delay is over."""
    return upload.gone_at is None or now < upload.gone_at


def assemble(upload: Upload, parts: Sequence[Part]) -> tuple[Body, Checksum]:
    """The object's bytes and its checksum of the upload's kind."""
    body = joined([part.whole for part in parts], upload.algorithm)
    if upload.kind == "COMPOSITE":
        return body, over_parts(part.checksum for part in parts)
    return body, body.checksum(upload.algorithm)


def etag_of_parts(parts: Sequence[Part]) -> str:
    """The MD5 of the parts' MD5s, with their number behind it."""
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    return f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"


Versioning = Literal["", "Enabled"]
_VERSION_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(slots=True)
class Bucket:
    """One bucket. `objects` are the current ones; `changed` holds for each key the sequence of its last change.

    `history` holds every key's versions, the newest first; without versioning that is the object alone.
    """

    name: str
    created: datetime
    objects: dict[str, StoredObject] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    uploads: Uploads = field(default_factory=Uploads)
    versioning: Versioning = ""
    history: dict[str, list[Version]] = field(default_factory=dict)

    def find(self, key: str, version_id: str | None) -> StoredObject:
        """The object, or one version of it. Raises NoSuchKey, NoSuchVersion, MethodNotAllowed, InvalidArgument."""
        current = self.objects.get(key)
        if version_id is None:
            if current is None:
                raise S3Error("NoSuchKey", Key=key, headers=self._marker_headers(key))
            return current
        found = self.version(key, version_id)
        if found is None:
            raise S3Error("NoSuchVersion", Key=key, VersionId=version_id)
        if isinstance(found, DeleteMarker):
            headers = {"x-amz-delete-marker": "true", "x-amz-version-id": version_id, "allow": "DELETE"}
            raise S3Error("MethodNotAllowed", "The version is a delete marker.", headers=headers)
        return found

    def version(self, key: str, version_id: str) -> Version | None:
        """Raises InvalidArgument for what can be no version id."""
        if version_id != NULL_VERSION and not _VERSION_ID.fullmatch(version_id):
            raise S3Error("InvalidArgument", "Invalid version id specified", ArgumentName="versionId")
        return next((each for each in self.history.get(key, []) if each.version_id == version_id), None)

    def add(self, version: Version) -> None:
        """Make it the current version; there is only one null version of a key."""
        others = [each for each in self.history.get(version.key, []) if each.version_id != version.version_id]
        self.history[version.key] = [version, *others]
        self._settle(version.key)

    def remove(self, version: Version) -> None:
        """Remove a version for good; the newest of the others is current again."""
        self.history[version.key] = [each for each in self.history[version.key] if each is not version]
        self._settle(version.key)

    def amend(self, old: StoredObject, new: StoredObject) -> None:
        """Put the amended version into the place of the old one."""
        self.history[old.key] = [new if each is old else each for each in self.history[old.key]]
        self._settle(old.key)

    def versions(self) -> Iterator[tuple[Version, bool]]:
        """Every version and whether it is its key's latest, by key and then by age, the newest first."""
        for key in sorted(self.history, key=str.encode):
            for position, version in enumerate(self.history[key]):
                yield version, position == 0

    def _settle(self, key: str) -> None:
        history = self.history[key]
        if not history:
            del self.history[key]
        if history and isinstance(history[0], StoredObject):
            self.objects[key] = history[0]
        else:
            self.objects.pop(key, None)

    def _marker_headers(self, key: str) -> dict[str, str]:
        history = self.history.get(key, [])
        if history and isinstance(history[0], DeleteMarker):
            return {"x-amz-delete-marker": "true", "x-amz-version-id": history[0].version_id}
        return {}


__all__ = ["Content", "Mutation", "Origin", "Store", "StoredObject"]


class Store:
    """Everything the double remembers."""

    def __init__(self) -> None:
        self.behaviour = Behaviour()
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
        """Give an upload up; it lives on for the behaviour's delay. Raises NoSuchUpload."""
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
        if not self.versioning(place.name):
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
