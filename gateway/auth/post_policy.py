"""POST form uploads: verify the signature of a form's policy, and check the form against the policy."""

import base64
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gateway.auth import signature_claims
from gateway.auth.principal import Principal, SecretOf, owner
from gateway.errors import StoreError

_REQUIRED = ("x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature")
_CREDENTIALS = frozenset({"awsaccesskeyid", "policy", "signature", "x-amz-security-token", *_REQUIRED})
_MEMBERS = ("expiration", "conditions")
_OPERATORS, _ARGUMENTS = ("eq", "starts-with", "content-length-range"), 2
_NEEDS_NO_CONDITION = frozenset({"policy", "x-amz-signature", "file"})
_EXPIRATION = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?Z")


@dataclass(frozen=True, slots=True)
class PostPolicy:
    """The signer of a form, and the bytes its file may have: ``min_length`` to ``max_length``, None for any."""

    principal: Principal
    min_length: int = 0
    max_length: int | None = None


def verify(
    fields: Mapping[str, str], secret_of: SecretOf, now: datetime, anonymous: Principal | None = None
) -> PostPolicy:
    """Prove the sender of a form, and that its policy allows the form. ``now`` is aware.

    ``anonymous``: the caller of a form without any credentials; None if such forms are refused.

    ``fields`` are the fields of the form without its file, with ``${filename}`` filled in. ``bucket`` among them is
    that of the address, which no field of the form may replace. Raises ``StoreError`` with S3's code otherwise.
    """
    form = _by_name(fields)
    if anonymous is not None and not _CREDENTIALS & form.keys():
        return PostPolicy(anonymous)
    principal = _signer(form, secret_of, now)
    expiration, conditions = _document(form["policy"])
    if expiration <= now:
        raise _denied("Policy expired.")
    rules = [_rule(condition, position) for position, condition in enumerate(conditions, 1)]
    allowed = PostPolicy(principal)
    for rule in rules:
        if isinstance(rule, _Length):
            longest = rule.longest if allowed.max_length is None else min(rule.longest, allowed.max_length)
            allowed = PostPolicy(principal, max(rule.shortest, allowed.min_length), longest)
        elif not rule.holds(form.get(rule.name, "")):
            raise _denied(f"Policy Condition failed: {rule}")
    covered = _NEEDS_NO_CONDITION.union(rule.name for rule in rules if isinstance(rule, _Value))
    if extra := sorted(name for name in form.keys() - covered if not name.startswith("x-ignore-")):
        raise _denied(f"Extra input fields: {', '.join(extra)}")
    if "bucket" not in form:  # no condition was checked against it
        raise _denied("Policy Condition failed: the bucket is not known.")
    return allowed


# The signature ------------------------------------------------------------------------------------------------------


def _by_name(fields: Mapping[str, str]) -> dict[str, str]:
    form: dict[str, str] = {}
    for raw_name, value in fields.items():
        name = raw_name.lower()
        if name in form:
            raise StoreError("InvalidArgument", 400, f"The form has two fields {name}.")
        form[name] = value
    return form


def _signer(form: Mapping[str, str], secret_of: SecretOf, now: datetime) -> Principal:
    if "awsaccesskeyid" in form or "signature" in form:
        raise signature_claims.version_2()
    if _CREDENTIALS & form.keys() - {"policy"} and "policy" not in form:
        raise _missing("policy")
    if "policy" not in form:
        raise StoreError.known("AccessDenied", reason="The form carries no signed policy.")
    for name in _REQUIRED:
        if name not in form:
            raise _missing(name)
    signature_claims.check_algorithm(form["x-amz-algorithm"], "InvalidArgument")
    credential = signature_claims.credential(form["x-amz-credential"], "InvalidArgument")
    if signature_claims.moment(form["x-amz-date"]) is None or form["x-amz-date"][:8] != credential.day:
        raise StoreError(
            "InvalidArgument", 400, "x-amz-date must look like 20260131T235959Z, of the day of the credential."
        )
    principal, secret = owner(credential.access_key_id, form.get("x-amz-security-token"), secret_of, now)
    key = signature_claims.signing_key(secret, credential.day, credential.region)
    if not hmac.compare_digest(
        signature_claims.signature(key, form["policy"]).encode(), form["x-amz-signature"].encode()
    ):
        raise StoreError.known("SignatureDoesNotMatch")
    return principal


def _missing(name: str) -> StoreError:
    message = (
        f"Bucket POST must contain a field named '{name}'.  If it is specified, please check the order of the fields."
    )
    return StoreError("InvalidArgument", 400, message, facts={"argument_name": name})


# The document -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Value:
    """The required value of a field, or, with ``prefix``, its beginning. A missing field is empty.

    As with S3, a Content-Type with commas is a list, and each of its members needs the prefix.
    """

    name: str
    expected: str
    prefix: bool

    def __str__(self) -> str:
        return _written(["starts-with" if self.prefix else "eq", f"${self.name}", self.expected])

    def holds(self, value: str) -> bool:
        if not self.prefix:
            return value == self.expected
        # Elsewhere white space counts: a key that begins with it is outside of each folder.
        values = [one.strip() for one in value.split(",")] if self.name == "content-type" else [value]
        return all(one.startswith(self.expected) for one in values)


@dataclass(frozen=True, slots=True)
class _Length:
    shortest: int
    longest: int


def _document(policy: str) -> tuple[datetime, list[Any]]:
    """Return the expiration and the conditions of a policy, unparsed."""
    document = _read(policy)
    expiration, conditions = document["expiration"], document["conditions"]
    if not isinstance(expiration, str):
        raise _invalid("Invalid JSON. The expiration must be a string.")
    if not _EXPIRATION.fullmatch(expiration):
        raise _expiration(expiration)
    if not isinstance(conditions, list):
        raise _invalid("Invalid 'conditions' value: must be a List.")
    try:
        return datetime.fromisoformat(expiration).astimezone(UTC), conditions
    except ValueError as error:
        raise _expiration(expiration) from error


def _read(policy: str) -> dict[str, Any]:
    """Return the members of a policy, none of which is missing."""
    if not policy:
        raise _invalid("Expecting '{' but found End-of-Input")
    try:
        decoded = base64.b64decode(policy.encode(), validate=True)
    except ValueError as error:
        raise _invalid("invalid Base64 encoding.") from error
    try:
        document: Any = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        raise _invalid("Invalid JSON.") from error
    if not isinstance(document, dict):
        raise _invalid("Invalid JSON. It must be an object.")
    if unknown := sorted(document.keys() - set(_MEMBERS)):
        raise _invalid(f"Unexpected: {json.dumps(unknown[0][:64])}")
    if missing := next((name for name in _MEMBERS if name not in document), None):
        raise _invalid(f"Policy missing {missing}.")
    return document


def _rule(condition: Any, position: int) -> _Value | _Length:
    match condition:
        case dict() if len(condition) == 1:
            [(name, expected)] = condition.items()
            if isinstance(expected, str):
                return _Value(name.lower(), expected, prefix=False)
        case [str() as operator, str() as name, str() as expected] if operator.lower() in ("eq", "starts-with"):
            if not name.startswith("$"):  # to S3 it is a condition that never holds
                raise _denied(f"Policy Condition failed: {_written(condition)}")
            return _Value(name[1:].lower(), expected, prefix=operator.lower() == "starts-with")
        case [str() as operator, int() as shortest, int() as longest]:
            # A bool would pass for an int.
            whole = type(shortest) is int and type(longest) is int
            if operator.lower() == "content-length-range" and whole and 0 <= shortest <= longest:
                return _Length(shortest, longest)
    raise _invalid(f"{_fault(condition)} It is condition {position}.")


def _fault(condition: Any) -> str:
    """Return what S3 says of a condition that it does not know."""
    match condition:
        case dict() if len(condition) != 1:
            return "Invalid Simple-Condition: Simple-Conditions must have exactly one property specified."
        case dict():
            return "Invalid Simple-Condition: value must be a string."
        case []:
            return "Invalid Condition: missing operation identifier."
        case [str() as operator, *arguments]:
            if operator.lower() not in _OPERATORS:
                return f"Invalid Condition: unknown operation {operator[:64]!a}."
            if len(arguments) != _ARGUMENTS:
                return f"Invalid {operator}: wrong number of arguments."
        case list():
            pass
        case _:
            return "Invalid condition test: must be a List or Object."
    return "Invalid JSON."


def _written(condition: list[str]) -> str:
    return json.dumps(condition)


def _expiration(value: str) -> StoreError:
    return _invalid(f"Invalid 'expiration' value: {value[:64]!a}. Write it as 2026-01-31T23:59:59Z.")


def _denied(reason: str) -> StoreError:
    return StoreError("AccessDenied", 403, f"Invalid according to Policy: {reason}")


def _invalid(reason: str) -> StoreError:
    return StoreError("InvalidPolicyDocument", 400, f"Invalid Policy: {reason}")
