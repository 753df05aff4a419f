"""The parts beside an object's bytes that a client changes without a condition: tags, ACL, legal hold, retention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from urllib.parse import parse_qsl

from tests.doubles.s3.messages import Answer, Request, child_text, children, document, element, group, parse, xml
from tests.doubles.s3.objects import Content, StoredObject, verify_digests
from tests.doubles.s3.operations import S3Error
from tests.doubles.s3.state import Store

_MOST_TAGS = 10
_ALL_USERS = "http://acs.amazonaws.com/groups/global/AllUsers"
_AUTHENTICATED_USERS = "http://acs.amazonaws.com/groups/global/AuthenticatedUsers"
# The grants of a canned ACL besides the owner's; the owner of the bucket is that of the object here.
_CANNED: Mapping[str, list[tuple[str, str]]] = {
    "private": [],
    "public-read": [(_ALL_USERS, "READ")],
    "public-read-write": [(_ALL_USERS, "READ"), (_ALL_USERS, "WRITE")],
    "authenticated-read": [(_AUTHENTICATED_USERS, "READ")],
    "bucket-owner-read": [],
    "bucket-owner-full-control": [],
}
_ROOTS = {"legal-hold": "LegalHold", "retention": "Retention"}
_SCHEMA = 'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:type'


def get_tagging(store: Store, request: Request) -> Answer:
    """GetObjectTagging."""
    stored = _target(store, request)
    tags = [group("Tag", [element("Key", key), element("Value", value)]) for key, value in stored.content.tags.items()]
    return xml("Tagging", group("TagSet", tags), headers=_version(store, request, stored))


def put_tagging(store: Store, request: Request) -> Answer:
    """PutObjectTagging: the new tags take the place of all."""
    _verify(request)
    sets = children(parse(request.body.data, "Tagging"), "TagSet")
    if len(sets) != 1:
        raise S3Error("MalformedXML")
    pairs = [(child_text(tag, "Key", strip=False), child_text(tag, "Value", strip=False)) for tag in sets[0]]
    tags = _tags(pairs)
    return _amend(store, request, 200, lambda content: replace(content, tags=tags))


def delete_tagging(store: Store, request: Request) -> Answer:
    """DeleteObjectTagging."""
    return _amend(store, request, 204, lambda content: replace(content, tags={}))


def get_acl(store: Store, request: Request) -> Answer:
    """GetObjectAcl."""
    stored = _target(store, request)
    acl = stored.content.documents.get("acl") or canned_acl("private")
    return Answer(200, acl, {"content-type": "application/xml", **_version(store, request, stored)})


def put_acl(store: Store, request: Request) -> Answer:
    """PutObjectAcl, with a document or a canned ACL."""
    _verify(request)
    headers, acl = request.head.headers, request.body.data
    if any(name.startswith("x-amz-grant-") for name in headers):
        raise S3Error("NotImplemented", "The double has no grants in headers.")
    if ("x-amz-acl" in headers) is bool(acl):
        raise S3Error("InvalidRequest", "An ACL is either in the body or in x-amz-acl.")
    if "x-amz-acl" in headers:
        acl = canned_acl(headers["x-amz-acl"])
    parse(acl, "AccessControlPolicy")
    return _amend(store, request, 200, lambda content: _with_document(content, "acl", acl))


def get_lock(store: Store, request: Request) -> Answer:
    """GetObjectLegalHold, GetObjectRetention."""
    stored = _target(store, request)
    kept = stored.content.documents.get(_lock(request))
    if kept is None:
        raise S3Error("NoSuchObjectLockConfiguration", Key=stored.key)
    return Answer(200, kept, {"content-type": "application/xml", **_version(store, request, stored)})


def put_lock(store: Store, request: Request) -> Answer:
    """PutObjectLegalHold, PutObjectRetention: kept as sent; the double enforces neither."""
    _verify(request)
    name, kept = _lock(request), request.body.data
    parse(kept, _ROOTS[name])
    return _amend(store, request, 200, lambda content: _with_document(content, name, kept))


def tags_of_header(value: str) -> dict[str, str]:
    """The tags of x-amz-tagging, which is written like a query. Raises InvalidTag."""
    return _tags(parse_qsl(value, keep_blank_values=True))


def canned_acl(name: str) -> bytes:
    """The document of a canned ACL. Raises InvalidArgument."""
    if name not in _CANNED:
        raise S3Error("InvalidArgument", ArgumentName="x-amz-acl", ArgumentValue=name)
    owner = [element("ID", "double"), element("DisplayName", "double")]
    grants = [_grant("CanonicalUser", owner, "FULL_CONTROL")]
    grants += [_grant("Group", [element("URI", uri)], permission) for uri, permission in _CANNED[name]]
    return document("AccessControlPolicy", group("Owner", owner), group("AccessControlList", grants))


def _grant(kind: str, grantee: list[str], permission: str) -> str:
    who = f'<Grantee {_SCHEMA}="{kind}">{"".join(grantee)}</Grantee>'
    return group("Grant", [who, element("Permission", permission)])


def _tags(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    tags = list(pairs)
    if len(tags) > _MOST_TAGS or len(dict(tags)) < len(tags) or any(not 1 <= len(key) <= 128 for key, _ in tags):
        raise S3Error("InvalidTag", f"At most {_MOST_TAGS} tags with different keys.")
    return dict(tags)


def _with_document(content: Content, name: str, kept: bytes) -> Content:
    return replace(content, documents={**content.documents, name: kept})


def _lock(request: Request) -> str:
    return next(name for name in _ROOTS if name in request.head.query)


def _verify(request: Request) -> None:
    verify_digests(request.body.digest, request.head.headers)


def _target(store: Store, request: Request) -> StoredObject:
    return store.get(*request.head.target, request.head.query.get("versionId"))


def _amend(store: Store, request: Request, status: int, change: Callable[[Content], Content]) -> Answer:
    head = request.head
    stored = store.amend(head.operation, *head.target, head.query.get("versionId"), request.origin, change)
    return Answer(status, headers=_version(store, request, stored))


def _version(store: Store, request: Request, stored: StoredObject) -> dict[str, str]:
    return {"x-amz-version-id": stored.version_id} if store.versioning(request.head.target[0]) else {}
