"""The rights that an ACL or a bucket policy in a request would give others at the store. Pure, and strict.

It also reads the buckets to which a configuration would have the store write.

The store reads the same document by a parser of its own. So whatever could be read in two ways is refused here, or
counts as the wider right.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree.ElementTree import Element  # only the type: xml.py does the parsing

from gateway.errors import StoreError
from gateway.objects.s3 import xml

_CANNED = {
    "private": (),
    "bucket-owner-read": (),
    "bucket-owner-full-control": (),
    "public-read": ("READ",),
    "authenticated-read": ("READ",),
    "aws-exec-read": ("READ",),
    "public-read-write": ("READ", "WRITE"),
    "log-delivery-write": ("READ_ACP", "WRITE"),
}
"""Permissions that each canned ACL gives others than the owners of object and bucket."""

_CANNED_HEADER, _GRANT_HEADER = "x-amz-acl", "x-amz-grant-"
_READING = frozenset({"READ", "READ_ACP"})
_PERMISSIONS = _READING | {"WRITE", "WRITE_ACP", "FULL_CONTROL"}
_MOST_TAGS = 2000
"""S3 has a hundred grants at most in an ACL, each of them with some twelve tags."""
_LONGEST_POLICY = 20 * 1024
"""Bytes of a policy in S3."""
_OTHER_ENCODING = re.compile(rb"""\s*<\?xml[^>]*encoding\s*=\s*["'](?!utf-8["'])""", re.IGNORECASE)

_STATEMENT = frozenset(
    "sid effect principal notprincipal action notaction resource notresource condition".split()  # noqa: SIM905
)
_READING_ACTIONS = ("s3:get", "s3:list")
_WAIVER = "s3:bypassgovernanceretention"
"""It lifts a retention for users who may delete or change the object anyway, and gives no right by itself."""
_ARN = re.compile(r"arn:[a-z-]*:s3:::([^/*?$]+)(?:/(.*))?", re.DOTALL)
_WILDCARD = re.compile(r"[*?$]")
_BEGINNING = re.compile(r"arn:[a-z-]*:s3:::([^/]+)")
_INVALID = {
    "principal": "Invalid principal in policy",
    "action": "Policy has invalid action",
    "resource": "Policy has invalid resource",
}
_SYNTAX = "Policies must be valid JSON and the first byte must be '{'"


_DESTINATIONS = frozenset({"bucket", "targetbucket"})
"""Elements that name a bucket, or its ARN, in configurations of logs, replication, inventories and analytics."""


UNNAMED = ""
"""The id of a user that a store does not name."""
_TYPE = "{http://www.w3.org/2001/XMLSchema-instance}type"
_USER = "CanonicalUser"


@dataclass(frozen=True, slots=True)
class AclRight:
    """A right in an ACL. ``grantee``: the id of one user of the store; None for anything else, such as a group.

    ``UNNAMED`` for a user without an id. MinIO shows the owner so.
    """

    grantee: str | None
    writes: bool


@dataclass(frozen=True, slots=True)
class PolicyRight:
    """The rights that one statement of a policy gives. ``public``: to all the world.

    ``keys``: a key or a prefix of keys, and whether it is a prefix. None: the bucket itself, or all of it.
    """

    writes: bool
    public: bool
    keys: tuple[tuple[str, bool] | None, ...]


def acl_of_headers(headers: Iterable[tuple[str, str]]) -> Sequence[AclRight]:
    """Return the rights that the headers of a request give, named in lower case. Raises ``StoreError``."""
    rights: list[AclRight] = []
    given = [pair for pair in headers if is_acl(pair[0])]
    if len({name == _CANNED_HEADER for name, _ in given}) > 1:
        raise StoreError("InvalidRequest", 400, "Specifying both Canned ACLs and Header Grants is not allowed")
    for name, value in given:
        if name == _CANNED_HEADER:
            if value not in _CANNED:
                raise StoreError("InvalidArgument", 400, f"There is no canned ACL {value[:64]!a}.")
            rights += [AclRight(None, permission not in _READING) for permission in _CANNED[value]]
        else:
            permission = name.removeprefix(_GRANT_HEADER).replace("-", "_").upper()
            rights += [AclRight(_id(grantee), permission not in _READING) for grantee in value.split(",")]
    return rights


def is_acl(name: str) -> bool:
    """Return whether a header, named in lower case, gives rights."""
    return name == _CANNED_HEADER or name.startswith(_GRANT_HEADER)


def acl_of_document(body: bytes) -> Sequence[AclRight]:
    """Return the rights in an AccessControlPolicy. Raises ``StoreError`` MalformedACLError."""
    if body.count(b"<") > _MOST_TAGS:
        raise _malformed_acl()
    root = None if _OTHER_ENCODING.match(body) or not _is_utf8(body) else xml.parse(body, len(body))
    if root is None or xml.local(root) != "AccessControlPolicy":
        raise _malformed_acl()
    fields = _fields(root, "Owner", "AccessControlList")
    grants = fields.get("AccessControlList")
    if grants is None:
        raise _malformed_acl()
    return [_right(grant) for grant in grants]


def names_no_owner(body: bytes) -> bool:
    """Return whether a store's own ACL has one right, for a user without an id. MinIO has no other ACL."""
    try:
        rights = acl_of_document(body)
    except StoreError:
        return False
    return rights == [AclRight(UNNAMED, writes=True)] and not xml.read_acl(body)[0]


def destinations(body: bytes) -> frozenset[str]:
    """Return the buckets to which the store is to write by itself. Raises ``StoreError`` MalformedXML."""
    root = None if _OTHER_ENCODING.match(body) or not _is_utf8(body) else xml.parse(body, len(body))
    if root is None:
        raise _malformed_xml()
    named = [element for element in root.iter() if xml.local(element).lower() in _DESTINATIONS]
    if any(len(element) or not (element.text or "").strip() for element in named):
        raise _malformed_xml()
    return frozenset((element.text or "").strip().rpartition(":")[2] for element in named)


def policy_rights(body: bytes, bucket: str) -> Sequence[PolicyRight]:
    """Return the rights that the policy of a bucket gives. Raises ``StoreError`` MalformedPolicy."""
    if len(body) > _LONGEST_POLICY:
        raise _malformed_policy("Policy exceeds the maximum allowed document size.")
    try:
        policy: Any = json.loads(body.decode(), object_pairs_hook=_members)
    except (ValueError, RecursionError) as error:
        begun = body.lstrip().startswith(b"{")
        raise _malformed_policy("This policy contains invalid Json" if begun else _SYNTAX) from error
    if not isinstance(policy, Mapping) or not policy.keys() <= {"version", "id", "statement"}:
        raise _malformed_policy(_SYNTAX, "Its members are Version, Id and Statement.")
    found = policy.get("statement", ())
    statements: Sequence[Any] = [found] if isinstance(found, Mapping) else found
    if not isinstance(statements, Sequence) or isinstance(statements, str):
        raise _malformed_policy(_SYNTAX, "Statement is a list.")
    rights = [_statement(statement, bucket) for statement in statements]
    return [right for right in rights if right is not None]


def _id(grantee: str) -> str | None:
    """Return the id in ``id="…"``; None for any other grantee. By hand: an expression takes hours for many spaces."""
    name, _, value = (part.strip() for part in grantee.partition("="))
    if len(value) > 1 and value[0] == value[-1] == '"':
        value = value[1:-1]
    return value if name == "id" and value and '"' not in value else None


def _right(grant: Element) -> AclRight:
    if xml.local(grant) != "Grant":
        raise _malformed_acl()
    fields = _fields(grant, "Grantee", "Permission")
    grantee, permission = fields.get("Grantee"), fields.get("Permission")
    if grantee is None or permission is None or len(permission):
        raise _malformed_acl()
    named = _fields(grantee, "ID", "DisplayName", "URI", "EmailAddress", "Type")
    right = (permission.text or "").strip()
    if right not in _PERMISSIONS or any(len(leaf) for leaf in named.values()):
        raise _malformed_acl()
    if "Type" in named and (len(named) > 1 or not named["Type"].text == grantee.get(_TYPE) == _USER):
        raise _malformed_acl()
    if not named.keys() - {"Type"} and grantee.get(_TYPE) == _USER:
        return AclRight(UNNAMED, right not in _READING)
    one = named["ID"].text if "ID" in named and not named.keys() & {"URI", "EmailAddress"} else None
    return AclRight(one, right not in _READING)


def _fields(element: Element, *names: str) -> dict[str, Element]:
    """Return the children by name: each of them stands there once at most, and no other does."""
    found = {xml.local(child): child for child in element}
    if len(found) != len(element) or not found.keys() <= set(names):
        raise _malformed_acl()
    return found


def _statement(statement: Any, bucket: str) -> PolicyRight | None:
    """Return what a statement allows; None if it denies. Its condition could only narrow that, and does not count."""
    if not isinstance(statement, Mapping) or not statement.keys() <= _STATEMENT:
        raise _malformed_policy(_SYNTAX, f"The members of a statement are {', '.join(sorted(_STATEMENT))}.")
    _check_statement(statement, bucket)
    if statement.get("effect") == "Deny":
        return None
    named_actions = _texts(statement.get("action"))
    actions = [one for one in named_actions if one.lower() != _WAIVER]
    if named_actions and not actions and "notaction" not in statement:
        return None
    reads = bool(actions) and all(one.lower().startswith(_READING_ACTIONS) for one in actions)
    principal = statement.get("principal")
    named = list(principal.values()) if isinstance(principal, Mapping) else [principal]
    public = principal is None or any("*" in one for each in named for one in _texts(each))
    resources = _texts(statement.get("resource"))
    everything = "notresource" in statement or not resources
    writes = "notaction" in statement or not reads
    keys = (None,) if everything else tuple(_keys(one, bucket) for one in resources)
    return PolicyRight(writes, public or "notprincipal" in statement, keys)


def _check_statement(statement: Mapping[str, Any], bucket: str) -> None:
    """Refuse what S3 refuses of a statement before it asks who may set policies. It is not all that S3 checks."""
    if statement.get("effect") not in ("Allow", "Deny"):
        raise _malformed_policy(f"Invalid effect: {str(statement.get('effect'))[:64]}")
    for name in ("principal", "action", "resource"):
        given = statement.get(name)
        if f"not{name}" in statement:
            continue
        if given is None:
            raise _malformed_policy(f"Missing required field {name.title()} cannot be empty!")
        named = list(given.values()) if isinstance(given, Mapping) else [given]
        texts = [one for each in named for one in _texts(each)]
        if not texts or "" in texts:
            raise _malformed_policy(_INVALID[name])
        if name == "action" and not all(one == "*" or one.lower().startswith("s3:") for one in texts):
            raise _malformed_policy(_INVALID[name])
        if name == "resource" and any(_is_of_another(one, bucket) for one in texts):
            raise _malformed_policy(_INVALID[name], f"A resource is arn:aws:s3:::{bucket}, or below it.")


def _is_of_another(resource: str, bucket: str) -> bool:
    """Return whether a resource is none of this bucket. Stores read wildcards in its name in ways of their own."""
    found = _BEGINNING.match(resource)
    return resource != "*" and (found is None or not (_WILDCARD.search(found[1]) or found[1] == bucket))


def _keys(resource: str, bucket: str) -> tuple[str, bool] | None:
    found = _ARN.fullmatch(resource)
    if found is None or found[1] != bucket or found[2] is None:
        return None
    wildcard = _WILDCARD.search(found[2])
    return (found[2], False) if wildcard is None else (found[2][: wildcard.start()], True)


def _texts(value: Any) -> Sequence[str]:
    texts = [value] if isinstance(value, str) else () if value is None else value
    if not isinstance(texts, Sequence) or not all(isinstance(one, str) for one in texts):
        reason = "A principal, an action and a resource are strings, or lists of strings."
        raise _malformed_policy(_SYNTAX, reason)
    return texts


def _members(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return the members of an object by lower-case name: some stores do not mind the case of names."""
    found = {name.lower(): value for name, value in pairs}
    if len(found) != len(pairs):
        raise ValueError("a name stands twice")
    return found


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _malformed_acl() -> StoreError:
    return StoreError.known("MalformedACLError")


def _malformed_xml() -> StoreError:
    return StoreError.known("MalformedXML")


def _malformed_policy(message: str, reason: str | None = None) -> StoreError:
    return StoreError("MalformedPolicy", 400, message, facts={"reason": reason})
