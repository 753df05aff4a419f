"""From the fields of a form upload to what it asks for: the object it will be, its writer, the answer."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode, urlsplit

from gateway.errors import StoreError
from gateway.objects.body import checksums
from gateway.objects.body.checksums import Declared
from gateway.objects.s3 import addressing, conditions, forwarded_headers, token_locations, xml
from gateway.objects.s3.operations import Operation, not_implemented
from gateway.objects.s3.request import S3Request

_FILENAME = "${filename}"
_MAX_TAGS = 10

# Said to whoever takes the form, and nothing of the object.
_OWN = frozenset(
    {
        "acl",
        "bucket",
        "key",
        "policy",
        "redirect",
        "success_action_redirect",
        "success_action_status",
        "tagging",
        "x-amz-algorithm",
        "x-amz-credential",
        "x-amz-signature",
    }
)
# These describe the body of a request, and a form is not the body they mean.
_OF_A_BODY = frozenset({"x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer"})
_CHECKS = frozenset({"content-md5", "x-amz-sdk-checksum-algorithm"})

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class FormUpload:
    """What a form asks for. ``status`` is that of the answer, unless there is an address to ``redirect`` to."""

    request: S3Request
    declared: Declared
    status: int
    redirect: str | None


def named_fields(fields: Iterable[tuple[str, str]], filename: str, bucket: str) -> dict[str, str]:
    """The fields by lower-case name, each once, with the name of the file filled in, and the bucket of the address.

    Raises ``StoreError`` 400 for a field that stands twice, or names another bucket.
    """
    found: dict[str, str] = {}
    for given, value in fields:
        name = given.lower()
        if name in found:
            raise StoreError("InvalidArgument", 400, f"The form has two fields {name[:64]!a}.")
        found[name] = value.replace(_FILENAME, filename)
    if found.setdefault("bucket", bucket) != bucket:
        raise StoreError("InvalidArgument", 400, "The field bucket is not the bucket of the address.")
    return found


def read_form(fields: Mapping[str, str]) -> FormUpload:
    """What a form asks for whose policy is verified. ``fields`` are as ``named_fields`` gives them.

    Raises ``StoreError``, and the errors of ``gateway.fencing.headers.read``.
    """
    bucket, key = fields["bucket"], fields.get("key")
    if key is None:
        raise StoreError("InvalidArgument", 400, "Bucket POST must contain a field named 'key' before the file.")
    if not key or "\0" in key:
        raise StoreError("UserKeyMustBeSpecified", 400, "The field key must name an object, without a NUL character.")
    addressing.check(bucket, key)
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    writer = token_locations.read_fencing(Operation.POST_OBJECT, raw, session=fields.get("x-amz-security-token"))
    condition = conditions.read(Operation.POST_OBJECT, fields)
    request = S3Request(
        Operation.POST_OBJECT, bucket, key, quote(key, safe="/"), (), _headers(fields), writer, condition
    )
    status = fields.get("success_action_status", "")
    return FormUpload(
        request,
        checksums.declared({name: value.strip() for name, value in fields.items() if _is_check(name)}),
        int(status) if status in ("200", "201") else 204,
        fields.get("success_action_redirect", fields.get("redirect")),
    )


def redirect_address(form: FormUpload, etag: str) -> str | None:
    """Where the form sends its browser once the object is there; None where it names no address that could be one.

    ``etag`` is without quotes. S3, too, answers with a status instead of redirecting to nowhere.
    """
    try:
        parts = urlsplit(form.redirect or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
    except ValueError:
        return None
    told = {"bucket": form.request.bucket, "key": form.request.key, "etag": f'"{etag}"'}
    query = "&".join(part for part in (parts.query, urlencode(told, quote_via=quote)) if part)
    return quote(parts._replace(query=query).geturl(), safe="%/:=&?~#+!$,;'@()*[]")


def _headers(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """The headers of the object: those a PutObject would have, and what a form calls by another name."""
    said = {name: value.strip() for name, value in fields.items() if name not in _OWN and not _is_ignored(name)}
    if described := sorted(_OF_A_BODY & said.keys()):
        raise not_implemented(f"{Operation.POST_OBJECT} with the field {described[0]}")
    for field, header, value in (
        ("acl", "x-amz-acl", fields.get("acl", "").strip()),
        ("tagging", "x-amz-tagging", _tags(fields.get("tagging", ""))),
    ):
        if field in fields and header in said:
            raise StoreError("InvalidArgument", 400, f"The form has both a field {field} and a field {header}.")
        if value:
            said[header] = value
    headers = forwarded_headers.forwarded(Operation.PUT_OBJECT, said)
    for name, value in headers:
        # In a field anything can stand; in a header, it cannot.
        if not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise StoreError("InvalidArgument", 400, f"The field {name[:64]!a} cannot be a header of the object.")
    return headers


def _tags(document: str) -> str:
    """The tags of a ``<Tagging>`` document, as the header of a PutObject has them."""
    if not document.strip():
        return ""
    tags = xml.read_tags(document.encode())
    if tags is None or not all(name for name, _ in tags):
        raise StoreError("MalformedXML", 400, "The field tagging must be a Tagging document, with a Key in each Tag.")
    if len(tags) > _MAX_TAGS:
        raise StoreError("BadRequest", 400, f"Object tags cannot be greater than {_MAX_TAGS}.")
    return urlencode(tags, quote_via=quote)


def _is_check(name: str) -> bool:
    return name in _CHECKS or name.startswith("x-amz-checksum-")


def _is_ignored(name: str) -> bool:
    return name.startswith("x-ignore-")
