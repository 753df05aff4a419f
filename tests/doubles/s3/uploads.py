"""Multipart uploads in progress: their parts, and how an object and its ETag come out of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tests.doubles.s3 import bodies, checksums
from tests.doubles.s3.bodies import Body
from tests.doubles.s3.checksums import Checksum
from tests.doubles.s3.conditions import bare
from tests.doubles.s3.errors import S3Error
from tests.doubles.s3.objects import Content


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
    """One upload. `initiated_after` is the store's sequence at its CreateMultipartUpload.

    `looks` is how often a list will still show it once it has been aborted.
    """

    upload_id: str
    key: str
    properties: Content
    initiated: datetime
    initiated_after: int
    algorithm: str
    kind: str
    parts: dict[int, Part] = field(default_factory=dict)
    gone_at: datetime | None = None
    looks: int = 0

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

    def look(self, shown: Sequence[Upload]) -> None:
        """Count that a list has shown these."""
        for upload in shown:
            upload.looks = max(0, upload.looks - 1)

    def abort(self, key: str, upload_id: str, now: datetime, delay: float, looks: int) -> None:
        """Let the upload go after the delay (seconds) and the looks. A second abort succeeds, as on AWS.

        Raises NoSuchUpload.
        """
        if upload_id in self._aborted:
            return
        upload = self.find(key, upload_id, now)
        upload.gone_at = now + timedelta(seconds=delay)
        upload.looks = looks
        self._aborted.add(upload_id)


def _is_alive(upload: Upload, now: datetime) -> bool:
    """An aborted one is until its delay is over and it has been looked at."""
    return upload.gone_at is None or now < upload.gone_at or upload.looks > 0


def assemble(upload: Upload, parts: Sequence[Part]) -> tuple[Body, Checksum]:
    """The object's bytes and its checksum of the upload's kind."""
    body = bodies.joined([part.whole for part in parts], upload.algorithm)
    if upload.kind == "COMPOSITE":
        return body, checksums.over_parts(part.checksum for part in parts)
    return body, body.checksum(upload.algorithm)


def etag_of_parts(parts: Sequence[Part]) -> str:
    """The MD5 of the parts' MD5s, with their number behind it."""
    digests = b"".join(bytes.fromhex(part.etag) for part in parts)
    return f"{hashlib.md5(digests).hexdigest()}-{len(parts)}"
