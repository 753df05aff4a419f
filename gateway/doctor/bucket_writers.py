"""The principals that could write a fenced bucket without the gateway, as far as the store says.

S3 shows the policy and the ACL of a bucket. It does not show which of its users an administrator allows.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from gateway.doctor.findings import Check, CheckStatus, ok
from gateway.errors import GatewayError
from gateway.objects.s3 import xml
from gateway.objects.store.operations import Upstream

STORE = "store"
"""The name under which an operator trusts the users whom the store does not show."""

_WRITES = ("PutObject", "DeleteObject", "DeleteObjectVersion", "ReplicateObject", "ReplicateDelete")
_RIGHTS = ("PutObjectAcl", "PutBucketAcl", "PutBucketPolicy", "PutLifecycleConfiguration")
_GRANTED = ("WRITE", "WRITE_ACP", "FULL_CONTROL")
_EXCEPT = {f"{kind}not{how}" for kind in ("string", "arn") for how in ("equals", "like")} | {
    "stringnotequalsignorecase"
}
_OWN_NAMES = ("aws:principalarn", "aws:userid")
# Its policies are for requests without a signature. Its users have policies of their own.
_IGNORES_POLICIES = "MinIO"
_ADVICE = "gateway doctor --fix-sql prints a policy that closes it, and --trust NAME accepts it (docs/operations.md)."


async def check_bucket_writers(upstream: Upstream, bucket: str, trusted: Sequence[str]) -> Sequence[Check]:
    """Return a warning for each way to write a bucket without the gateway, or ``ok``."""
    name = f"bucket {bucket}, other writers"
    status, policy, server = await _read(upstream, bucket, "policy")
    if status not in (200, 404):
        policy = b""
    document = _json(policy) if status == 200 else {}
    acl_status, acl, _ = await _read(upstream, bucket, "acl")
    granted = _granted(acl) if acl_status == 200 else []
    found = {who: said for who, said in [*writers(document), *granted] if who not in trusted}
    if found:
        said = "; ".join(f"{who} {what}" for who, what in found.items())
        return [Check(name, CheckStatus.WARNING, said, _ADVICE, _fix(bucket))]
    only = () if server.startswith(_IGNORES_POLICIES) else sole_writers(document, bucket)
    if only:
        return [ok(name, f"its policy denies writes to all but {', '.join(only)}")]
    shown = "neither its policy nor its ACL lets others write it"
    if status not in (200, 404):
        shown = f"the store does not show its policy to the gateway ({status})"
    if STORE in trusted:
        return [ok(name, f"{shown}; the users of the store are trusted")]
    fix = () if server.startswith(_IGNORES_POLICIES) else _fix(bucket)
    said = f"{shown}; the store does not say which of its users its administrators allow"
    return [Check(name, CheckStatus.WARNING, said, _ADVICE, fix)]


def writers(policy: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield each principal that a policy lets write, and how. A condition is not evaluated."""
    for statement in _statements(policy, "Allow"):
        actions = [action for action in (*_WRITES, *_RIGHTS) if _covers(statement, action)]
        if actions:
            condition = ", under a condition" if statement.get("Condition") else ""
            said = f"may {', '.join(actions)} by the policy{condition}"
            if "NotPrincipal" in statement:
                yield "everybody but " + ", ".join(_principals(statement["NotPrincipal"])), said
            for who in _principals(statement.get("Principal", ())):
                yield who, said


def sole_writers(policy: Mapping[str, Any], bucket: str) -> tuple[str, ...]:
    """Return the only principals whom a policy does not deny writes; nothing without a denial."""
    for statement in _statements(policy, "Deny"):
        if not all(_covers(statement, action) for action in _WRITES[:3]):
            continue
        if not any(fnmatchcase(f"arn:aws:s3:::{bucket}/x", one) for one in _listed(statement.get("Resource", ()))):
            continue
        if statement.get("Condition"):
            if "*" in _principals(statement.get("Principal", ())) and (named := _named(statement["Condition"])):
                return named
        elif "NotPrincipal" in statement:
            return tuple(_principals(statement["NotPrincipal"]))
    return ()


def _named(condition: Any) -> tuple[str, ...]:
    """Return the principals that a condition excepts; nothing if it is about anything else, too."""
    if not isinstance(condition, Mapping) or len(condition) != 1:
        return ()
    [(operator, keys)] = condition.items()
    if operator.lower() not in _EXCEPT or not isinstance(keys, Mapping) or len(keys) != 1:
        return ()
    [(key, values)] = keys.items()
    return tuple(_listed(values)) if key.lower() in _OWN_NAMES else ()


def _statements(policy: Mapping[str, Any], effect: str) -> Iterable[Mapping[str, Any]]:
    found = policy.get("Statement", ())
    for statement in [found] if isinstance(found, Mapping) else found:
        if isinstance(statement, Mapping) and statement.get("Effect") == effect:
            yield statement


def _covers(statement: Mapping[str, Any], action: str) -> bool:
    def matches(patterns: Any) -> bool:
        return any(fnmatchcase(f"s3:{action}".lower(), one.lower()) for one in _listed(patterns))

    return not matches(statement["NotAction"]) if "NotAction" in statement else matches(statement.get("Action", ()))


def _principals(named: Any) -> list[str]:
    if isinstance(named, Mapping):
        return [who for values in named.values() for who in _listed(values)]
    return _listed(named)


def _listed(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [str(one) for one in value]


def _granted(acl: bytes) -> list[tuple[str, str]]:
    """Return the grantees of an ACL that may write, other than the owner of the bucket."""
    owner, grants = xml.read_acl(acl)
    found: dict[str, list[str]] = {}
    for grantee, permission in grants:
        if permission in _GRANTED and grantee != owner:
            found.setdefault(grantee, []).append(permission)
    return [(grantee, f"has {', '.join(permissions)} by the ACL") for grantee, permissions in found.items()]


def _fix(bucket: str) -> tuple[str, ...]:
    statement = {
        "Sid": "FencedByTheGateway",
        "Effect": "Deny",
        "NotPrincipal": {"AWS": ["THE PRINCIPAL OF s3.access_key_id"]},
        "Action": [f"s3:{action}" for action in (*_WRITES, *_RIGHTS)],
        "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]}, indent=2)
    told = f"The policy of the bucket {bucket}, for s3api put-bucket-policy:\n{policy}"
    return ("\n".join(f"-- {line}" for line in told.split("\n")),)


async def _read(upstream: Upstream, bucket: str, what: str) -> tuple[int, bytes, str]:
    """Return status and body of what the store says, and the name of its server."""
    try:
        async with await upstream.send("GET", f"/{bucket}", f"{what}=") as response:
            return response.status, await response.read(), response.header("server") or ""
    except GatewayError as error:
        return error.status, b"", ""


def _json(text: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, Mapping) else {}
