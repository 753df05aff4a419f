"""The operations of multipart uploads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from operator import attrgetter
from xml.etree.ElementTree import Element

from tests.doubles.s3.buckets import rows_behind
from tests.doubles.s3.messages import (
    Answer,
    Request,
    child_text,
    children,
    element,
    group,
    iso_date,
    named,
    number,
    parse,
    xml,
)
from tests.doubles.s3.objects import DEFAULT_CHECKSUM, Body, Checksum, claimed_checksum, verify_digests
from tests.doubles.s3.operations import S3Error
from tests.doubles.s3.state import Part, Store, Upload, assemble
from tests.doubles.s3.writing import properties_of, source_headers, source_of, version_headers

_MAXIMUM_PARTS = 10_000
_SOURCE_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


def create_upload(store: Store, request: Request) -> Answer:
    """CreateMultipartUpload."""
    bucket, key = request.head.target
    if key.endswith("/") and store.behaviour.marker_uploads == "refused":
        raise S3Error("XMinioInvalidObjectName", "Object name contains unsupported characters.", status=400)
    headers = request.head.headers
    algorithm = headers.get("x-amz-checksum-algorithm", "").lower()
    default_kind = "COMPOSITE" if algorithm and algorithm != DEFAULT_CHECKSUM else "FULL_OBJECT"
    kind = headers.get("x-amz-checksum-type", default_kind).upper()
    checksum = (algorithm or DEFAULT_CHECKSUM, kind)
    upload = store.initiate(bucket, key, properties_of(headers), request.origin, checksum)
    identity = [element("Bucket", bucket), element("Key", key), element("UploadId", upload.upload_id)]
    chosen = {"x-amz-checksum-algorithm": algorithm.upper(), "x-amz-checksum-type": kind} if algorithm else {}
    return xml("InitiateMultipartUploadResult", *identity, headers=chosen)


def upload_part(store: Store, request: Request) -> Answer:
    """UploadPart."""
    upload = _upload(store, request)
    brought = verify_digests(request.body.digest, request.head.headers)
    part = _keep_part(store, request, upload, request.body)
    answered = brought or part.checksum
    return Answer(200, headers={"etag": f'"{part.etag}"', f"x-amz-checksum-{answered.algorithm}": answered.value})


def copy_part(store: Store, request: Request) -> Answer:
    """UploadPartCopy."""
    upload = _upload(store, request)
    source = source_of(store, request)
    part = _keep_part(store, request, upload, _source_range(request, source.content.whole))
    return xml(
        "CopyPartResult",
        element("ETag", f'"{part.etag}"'),
        element("LastModified", iso_date(part.modified)),
        element(part.checksum.element, part.checksum.value),
        headers=source_headers(store, request, source),
    )


def complete_upload(store: Store, request: Request) -> Answer:
    """CompleteMultipartUpload; its condition is evaluated at this moment, in one step with the write."""
    bucket, key = request.head.target
    upload = _upload(store, request)
    chosen = _chosen_parts(upload, request.body.data)
    _check_object_checksum(upload, chosen, request.head.headers)
    stored = store.complete(bucket, key, upload.upload_id, chosen, request.condition, request.origin)
    if key.endswith("/") and store.behaviour.marker_uploads == "renamed":
        objects = store.bucket(bucket).objects
        objects[key.removesuffix("/")] = objects.pop(key)
    checksum = stored.content.checksum
    return xml(
        "CompleteMultipartUploadResult",
        element("Location", f"http://{request.head.headers.get('host', '')}{request.head.raw_path}"),
        element("Bucket", bucket),
        element("Key", key),
        element("ETag", f'"{stored.etag}"'),
        element(checksum.element, checksum.value) if checksum else "",
        element("ChecksumType", checksum and checksum.kind),
        headers=version_headers(store, request, stored.version_id),
    )


def abort_upload(store: Store, request: Request) -> Answer:
    """AbortMultipartUpload."""
    store.abort(*request.head.target, request.head.query["uploadId"], request.now)
    return Answer(204)


def list_parts(store: Store, request: Request) -> Answer:
    """ListParts."""
    bucket, key = request.head.target
    upload, query = _upload(store, request), request.head.query
    marker = number(query.get("part-number-marker"), 0, _MAXIMUM_PARTS)
    limit = number(query.get("max-parts"), 1000)
    remaining = [part for count, part in sorted(upload.parts.items()) if count > marker]
    shown = remaining[:limit]
    return xml(
        "ListPartsResult",
        element("Bucket", bucket),
        named(request, "Key", key),
        element("UploadId", upload.upload_id),
        element("PartNumberMarker", marker),
        element("NextPartNumberMarker", shown[-1].number if shown else 0),
        element("MaxParts", limit),
        element("IsTruncated", len(remaining) > len(shown)),
        element("ChecksumAlgorithm", upload.algorithm.upper()),
        element("ChecksumType", upload.kind),
        *(_part_entry(part) for part in shown),
    )


def list_uploads(store: Store, request: Request) -> Answer:
    """ListMultipartUploads."""
    query = request.head.query
    limit, uploads = number(query.get("max-uploads"), 1000), store.bucket(request.head.bucket or "").uploads
    marker = query.get("key-marker", ""), query.get("upload-id-marker")
    running = uploads.running(request.now)
    page = rows_behind(request, running, attrgetter("key"), attrgetter("upload_id"), marker=marker, limit="max-uploads")
    return xml(
        "ListMultipartUploadsResult",
        element("Bucket", request.head.bucket),
        named(request, "KeyMarker", query.get("key-marker", "")),
        element("UploadIdMarker", query.get("upload-id-marker", "")),
        named(request, "NextKeyMarker", page.next_key),
        element("NextUploadIdMarker", page.next_id),
        named(request, "Prefix", query.get("prefix", "")),
        named(request, "Delimiter", query.get("delimiter")),
        element("EncodingType", query.get("encoding-type")),
        element("MaxUploads", limit),
        element("IsTruncated", page.next_key is not None),
        *(_upload_entry(upload, request) for upload in page.rows),
        *(group("CommonPrefixes", [named(request, "Prefix", prefix)]) for prefix in page.prefixes),
    )


def _upload(store: Store, request: Request) -> Upload:
    bucket, key = request.head.target
    return store.bucket(bucket).uploads.find(key, request.head.query["uploadId"], request.now)


def _keep_part(store: Store, request: Request, upload: Upload, body: Body) -> Part:
    count = request.head.query["partNumber"]
    if not re.fullmatch(r"\d{1,5}", count, re.ASCII) or not 1 <= int(count) <= _MAXIMUM_PARTS:
        raise S3Error("InvalidArgument", ArgumentName="partNumber", ArgumentValue=count)
    checksum = body.checksum(upload.algorithm)
    part = Part(int(count), body, body.digest("md5").hex(), request.now, checksum)
    store.add_part(*request.head.target, upload.upload_id, part, request.now)
    return part


def _source_range(request: Request, source: Body) -> Body:
    value = request.head.headers.get("x-amz-copy-source-range")
    if value is None:
        return source
    match = _SOURCE_RANGE.fullmatch(value)
    if match is None or not int(match[1]) <= int(match[2]) < source.size:
        raise S3Error("InvalidArgument", ArgumentName="x-amz-copy-source-range", ArgumentValue=value)
    return source.cut(int(match[1]), int(match[2]) + 1)


def _chosen_parts(upload: Upload, body: bytes) -> list[tuple[int, str]]:
    """The (part number, ETag) pairs of the document; checksums in it must be those of the parts."""
    root = parse(body)
    try:
        entries = [(entry, int(child_text(entry, "PartNumber"))) for entry in children(root, "Part")]
    except ValueError as error:
        raise S3Error("MalformedXML") from error
    for entry, count in entries:
        part = upload.parts.get(count)
        if part is not None:
            _check_part_checksum(entry, part.checksum)
    return [(count, child_text(entry, "ETag")) for entry, count in entries]


def _check_part_checksum(entry: Element, checksum: Checksum) -> None:
    if child_text(entry, checksum.element) not in ("", checksum.value):
        raise S3Error("InvalidPart", "The checksum is not that of the part.")


def _check_object_checksum(upload: Upload, chosen: list[tuple[int, str]], headers: Mapping[str, str]) -> None:
    """Compare the checksum beside a completion with that of the object. A composite one may lack its number of parts.

    One of another algorithm than the upload's is ignored.
    """
    claimed, kind = claimed_checksum(headers), headers.get("x-amz-checksum-type", upload.kind)
    if kind != upload.kind:
        raise S3Error("InvalidRequest", f"The upload was created with the checksum type {upload.kind}.")
    if claimed is None or claimed.algorithm != upload.algorithm or not upload.parts.keys() >= {n for n, _ in chosen}:
        return
    _, checksum = assemble(upload, [upload.parts[count] for count, _ in chosen])
    if claimed.value not in (checksum.value, checksum.value.partition("-")[0]):
        raise S3Error("BadDigest", f"The {upload.algorithm} of the object is not the one in the header.")


def _part_entry(part: Part) -> str:
    return group(
        "Part",
        [
            element("PartNumber", part.number),
            element("LastModified", iso_date(part.modified)),
            element("ETag", f'"{part.etag}"'),
            element("Size", part.whole.size),
            element(part.checksum.element, part.checksum.value),
        ],
    )


def _upload_entry(upload: Upload, request: Request) -> str:
    return group(
        "Upload",
        [
            named(request, "Key", upload.key),
            element("UploadId", upload.upload_id),
            element("Initiated", iso_date(upload.initiated)),
            element("StorageClass", "STANDARD"),
            element("ChecksumAlgorithm", upload.algorithm.upper()),
            element("ChecksumType", upload.kind),
        ],
    )
