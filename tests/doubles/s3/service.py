"""The store behind its API: who may ask, what an operation does, and the one step that decides and does a write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from tests.doubles.s3 import amendments, buckets, multipart, reading, writing
from tests.doubles.s3.conditions import UNCONDITIONAL, Condition
from tests.doubles.s3.messages import WRITE_ID, Answer, Head, Request
from tests.doubles.s3.objects import DEFAULT_CHECKSUM, Body, Intake, claimed_checksum
from tests.doubles.s3.operations import CONDITIONAL_WRITES, Operation, S3Error
from tests.doubles.s3.signature import Verifier
from tests.doubles.s3.state import Store, Upload

_HANDLERS: Mapping[Operation, Callable[[Store, Request], Answer]] = {
    Operation.LIST_BUCKETS: buckets.list_buckets,
    Operation.CREATE_BUCKET: buckets.create_bucket,
    Operation.DELETE_BUCKET: buckets.delete_bucket,
    Operation.HEAD_BUCKET: buckets.head_bucket,
    Operation.GET_BUCKET_LOCATION: buckets.get_bucket_location,
    Operation.GET_BUCKET_VERSIONING: buckets.get_bucket_versioning,
    Operation.PUT_BUCKET_VERSIONING: buckets.put_bucket_versioning,
    Operation.LIST_OBJECTS: buckets.list_objects,
    Operation.LIST_OBJECTS_V2: buckets.list_objects_v2,
    Operation.LIST_OBJECT_VERSIONS: buckets.list_object_versions,
    Operation.GET_OBJECT: reading.get_object,
    Operation.HEAD_OBJECT: reading.get_object,
    Operation.PUT_OBJECT: writing.put_object,
    Operation.COPY_OBJECT: writing.copy_object,
    Operation.DELETE_OBJECT: writing.delete_object,
    Operation.DELETE_OBJECTS: writing.delete_objects,
    Operation.GET_TAGGING: amendments.get_tagging,
    Operation.PUT_TAGGING: amendments.put_tagging,
    Operation.DELETE_TAGGING: amendments.delete_tagging,
    Operation.GET_ACL: amendments.get_acl,
    Operation.PUT_ACL: amendments.put_acl,
    Operation.GET_LEGAL_HOLD: amendments.get_lock,
    Operation.PUT_LEGAL_HOLD: amendments.put_lock,
    Operation.GET_RETENTION: amendments.get_lock,
    Operation.PUT_RETENTION: amendments.put_lock,
    Operation.CREATE_UPLOAD: multipart.create_upload,
    Operation.UPLOAD_PART: multipart.upload_part,
    Operation.COPY_PART: multipart.copy_part,
    Operation.COMPLETE_UPLOAD: multipart.complete_upload,
    Operation.ABORT_UPLOAD: multipart.abort_upload,
    Operation.LIST_UPLOADS: multipart.list_uploads,
    Operation.LIST_PARTS: multipart.list_parts,
}
_WITH_BODY = frozenset({Operation.PUT_OBJECT, Operation.UPLOAD_PART})


class Service:
    """The store, its keys and its clock."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier
        self.store = Store()

    def now(self) -> datetime:
        """The store's time."""
        return datetime.now(UTC) + timedelta(seconds=self.store.behaviour.clock_offset)

    def write_id(self, head: Head) -> str | None:
        """The write-id in the request's metadata, or in that of its upload."""
        upload = self._upload(head)
        return upload.metadata.get("fencing-write-id") if upload else head.headers.get(WRITE_ID)

    def intake(self, head: Head) -> Intake:
        """Return the intake of the request's body. For an unkept body, it computes every digest that may be needed."""
        algorithms = {"md5", DEFAULT_CHECKSUM}
        upload, claimed = self._upload(head), claimed_checksum(head.headers)
        algorithms |= {upload.algorithm} if upload else set()
        algorithms |= {claimed.algorithm} if claimed else set()
        if head.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD") != "UNSIGNED-PAYLOAD":
            algorithms.add("sha256")
        return Intake(algorithms, keeps=self.store.behaviour.keeps_bodies or head.operation not in _WITH_BODY)

    def admit(self, head: Head) -> None:
        """Check a head on its arrival: signature, date, length. Raises S3Error."""
        if self.store.behaviour.check_signatures:
            self._verifier.check(head, self.now())
        if head.headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
            raise S3Error("NotImplemented", "The double does not decode aws-chunked bodies.")
        if head.operation in _WITH_BODY and "content-length" not in head.headers:
            raise S3Error("MissingContentLength")

    def check_body(self, head: Head, body: Body) -> None:
        """Compare the body with the hash that was signed. Raises XAmzContentSHA256Mismatch."""
        claimed = head.headers.get("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
        if claimed not in ("UNSIGNED-PAYLOAD", body.digest("sha256").hex()):
            raise S3Error("XAmzContentSHA256Mismatch", ClientComputedContentSHA256=claimed)

    async def evaluate(self, head: Head, body: Body, write_id: str | None) -> Answer:
        """Judge the condition at this moment and apply the request: one step, unless the store has a gap."""
        condition = UNCONDITIONAL
        if head.operation in CONDITIONAL_WRITES:
            condition = self.store.behaviour.effective(head.operation, head.condition, head.key)
            gap = self.store.behaviour.gap(head.operation)
            if condition and gap is not None:
                self._check_apart(head, condition)
                await asyncio.sleep(gap)
                condition = UNCONDITIONAL
        return _HANDLERS[head.operation](self.store, Request(head, body, condition, self.now(), write_id))

    def _upload(self, head: Head) -> Upload | None:
        bucket, upload_id = self.store.buckets.get(head.bucket or ""), head.query.get("uploadId")
        if bucket is None or upload_id is None:
            return None
        return bucket.uploads.get(upload_id, self.now())

    def _check_apart(self, head: Head, condition: Condition) -> None:
        """The check of a store that is not atomic: what it has seen may have changed when the write is done."""
        bucket, key = head.target
        upload = None
        if head.operation is Operation.COMPLETE_UPLOAD:
            upload = self.store.bucket(bucket).uploads.find(key, head.query["uploadId"], self.now())
        self.store.check(head.operation, bucket, key, condition, upload)
