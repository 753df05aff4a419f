"""PostObject: the upload of a browser's form, which is a PutObject that its fields describe and its policy allows.

The stages, in order: read the fields, verify the policy, prepare the write, take the file in, respond.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote, urlencode, urlsplit

from starlette.types import Scope

from gateway import budget
from gateway.auth import post_policy
from gateway.auth.sigv4 import PayloadMode, RequestHead, Signers, VerifiedSignature
from gateway.errors import StoreError, TokenRequired
from gateway.http import origins
from gateway.http.body import Body
from gateway.http.head import Head
from gateway.objects.exchange import Exchange, ResponseWriter
from gateway.objects.fenced_write import FencedWrite
from gateway.objects.form_body import FormBody, is_form_upload
from gateway.objects.protocol.effects import Stored
from gateway.objects.put import Puts
from gateway.objects.s3 import addressing, checksums, xml
from gateway.objects.s3.checksums import Declared
from gateway.objects.s3.operations import Operation, not_implemented
from gateway.objects.s3.request import S3Request, forwarded, read_condition, read_fencing
from gateway.record.payload_capture import NOTHING, Capture

_FILENAME = "${filename}"
_MAX_TAGS = 10

# Fields for the server that takes the form. They are no part of the object.
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
# These describe the body of a request. A form is not that body.
_OF_A_BODY = frozenset({"x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer"})
_CHECKS = frozenset({"content-md5", "x-amz-sdk-checksum-algorithm"})

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SIGNED_ONLY = ("x-amz-", "x-fencing-", "fencing-", "if-")


@dataclass(frozen=True, slots=True)
class FormRequest:
    """The request in a form. ``status`` is that of the answer, unless there is an address to ``redirect`` to."""

    request: S3Request
    declared: Declared
    status: int
    redirect: str | None


class FormUploads:
    """Form uploads. Their fields prove who sent them, so they skip the stages that read the head of a request.

    Nothing but a PostObject gets in this way: the operation is not read from the request. ``max_body``: the largest
    file, in bytes.
    """

    def __init__(
        self,
        puts: Puts,
        signers: Signers,
        of_key: Callable[[str, str], "FormUploads"],
        max_body: int,
        capture: Capture = NOTHING,
    ) -> None:
        """``of_key`` returns those of the database that fences a key of a bucket."""
        self._puts, self._signers, self._of_key = puts, signers, of_key
        self._max_body, self._capture = max_body, capture

    def bucket(self, head: RequestHead, host_bucket: str | None) -> str | None:
        """Return the bucket that a form is posted to; None for every other POST."""
        if head.query_string or not is_form_upload(head.headers):
            return None
        bucket, key = addressing.read(head.raw_path, host_bucket)
        return bucket if bucket and not key else None

    async def post(
        self, bucket: str, scope: Scope, head: Head, body: Body, response: ResponseWriter, *, hosted: bool
    ) -> None:
        """Serve a PostObject. Raises ``GatewayError``, ``ClientGone``."""
        _check_headers(head.headers)
        incoming = FormBody(body, head.headers, self._max_body, self._capture)
        fields, filename = await incoming.fields()
        named = named_fields(fields, filename, bucket)
        signers = self._signers
        policy = post_policy.verify(named, signers.secret_of, signers.clock(), signers.anonymous)
        policy.principal.note_use()
        budget.serve(scope["state"], policy.principal.name)
        if policy.principal.is_anonymous:
            origins.check(head.method, head.headers)  # a page of any site can post a form
        form = read_form(named)
        media_type = dict(form.request.headers).get("content-type", "")
        incoming.expect(form.declared, policy.min_length, policy.max_length, media_type)
        signature = VerifiedSignature(policy.principal, PayloadMode.UNSIGNED)
        exchange = Exchange(scope, head, body, response, form.request, signature, self._max_body, hosted)
        write, stored = await self._of_key(bucket, form.request.key).store(exchange, incoming)
        await _respond(exchange, form, write, stored)

    async def refuse(self, exchange: Exchange) -> None:
        """Refuse a PostObject that is no form."""
        raise StoreError(
            "PreconditionFailed",
            412,
            f"{exchange.request.operation} takes a form: Content-Type multipart/form-data, and no query.",
            facts={"condition": "Bucket POST must be of the enclosure-type multipart/form-data"},
        )

    async def store(self, exchange: Exchange, incoming: FormBody) -> tuple[FencedWrite, Stored]:
        """Store the file of a form whose policy is verified, at a key that is fenced here. Raises ``GatewayError``."""
        write = await self._prepare(exchange, incoming)
        early = incoming.most > self._puts.threshold
        return write, await self._puts.store(write, incoming, exchange.request.headers, early=early)

    async def _prepare(self, exchange: Exchange, incoming: FormBody) -> FencedWrite:
        try:
            return await self._puts.writes.prepare(exchange, capture_start=incoming.capture_start)
        except TokenRequired as error:
            advice = "Give the form a field x-amz-meta-fencing-token with a condition for it in its policy."
            raise TokenRequired(error.message, advice=advice, facts=error.facts) from error


async def _respond(exchange: Exchange, form: FormRequest, write: FencedWrite, stored: Stored) -> None:
    applied, resource, fence = stored.applied, write.target.resource, stored.fence
    etag = applied.etag or ""
    address = redirect_address(form, etag)
    if address is not None:
        await exchange.response.acknowledged(303, ((b"location", address.encode("ascii")),), resource, fence)
        return
    location = exchange.address
    headers = (*applied.headers, (b"location", location.encode("latin-1", "replace")))
    document = xml.posted(location, write.bucket, write.key, etag) if form.status == 201 else b""
    await exchange.response.stored(replace(applied, headers=headers), resource, fence, document, form.status)


def _check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Refuse headers with a meaning: a form signs its fields alone, so any caller could have set the headers."""
    names = {name.decode("latin-1").lower() for name, _ in headers}
    if "authorization" in names:
        raise StoreError(
            "InvalidArgument", 400, "Only one authorization is allowed: a form is signed in its fields, by its policy."
        )
    folded = {name.replace("_", "-") for name in names}
    if unsigned := sorted(name for name in folded if name.startswith(_SIGNED_ONLY) or name == "content-md5"):
        raise StoreError(
            "AccessDenied",
            403,
            f"There were headers present in the request which were not signed: {', '.join(unsigned)}. "
            "Send them as fields of the form, with conditions for them in its policy.",
        )


def named_fields(fields: Iterable[tuple[str, str]], filename: str, bucket: str) -> dict[str, str]:
    """Return the fields by lower-case name, with the name of the file filled in, and the bucket of the address.

    Raises ``StoreError`` 400 for a field that is there twice, or names another bucket.
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


def read_form(fields: Mapping[str, str]) -> FormRequest:
    """Return the request in a form whose policy is verified. ``fields`` are as ``named_fields`` returns them.

    Raises ``StoreError``, and the errors of ``gateway.fencing.headers.read``.
    """
    bucket, key = fields["bucket"], fields.get("key")
    if key is None:
        raise StoreError("InvalidArgument", 400, "Bucket POST must contain a field named 'key' before the file.")
    if not key or "\0" in key:
        raise StoreError("UserKeyMustBeSpecified", 400, "The field key must name an object, without a NUL character.")
    addressing.check(bucket, key)
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    writer = read_fencing(Operation.POST_OBJECT, raw, session=fields.get("x-amz-security-token"))
    condition = read_condition(Operation.POST_OBJECT, fields)
    request = S3Request(
        Operation.POST_OBJECT, bucket, key, quote(key, safe="/"), (), _headers(fields), writer, condition
    )
    status = fields.get("success_action_status", "")
    return FormRequest(
        request,
        checksums.declared({name: value.strip() for name, value in fields.items() if _is_check(name)}),
        int(status) if status in ("200", "201") else 204,
        fields.get("success_action_redirect", fields.get("redirect")),
    )


def redirect_address(form: FormRequest, etag: str) -> str | None:
    """Return the address to redirect the browser to; None where the form names none, or no valid one.

    ``etag`` is without quotes. S3, too, then answers with a status instead of a redirect.
    """
    try:
        parts = urlsplit(form.redirect or "")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
    except ValueError:
        return None
    parameters = {"bucket": form.request.bucket, "key": form.request.key, "etag": f'"{etag}"'}
    query = "&".join(part for part in (parts.query, urlencode(parameters, quote_via=quote)) if part)
    return quote(parts._replace(query=query).geturl(), safe="%/:=&?~#+!$,;'@()*[]")


def _headers(fields: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the headers of the object: those of a PutObject, and those that a form calls by another name."""
    given = {name: value.strip() for name, value in fields.items() if name not in _OWN and not _is_ignored(name)}
    if described := sorted(_OF_A_BODY & given.keys()):
        raise not_implemented(f"{Operation.POST_OBJECT} with the field {described[0]}")
    for field, header, value in (
        ("acl", "x-amz-acl", fields.get("acl", "").strip()),
        ("tagging", "x-amz-tagging", _tags(fields.get("tagging", ""))),
    ):
        if field in fields and header in given:
            raise StoreError("InvalidArgument", 400, f"The form has both a field {field} and a field {header}.")
        if value:
            given[header] = value
    headers = forwarded(Operation.PUT_OBJECT, given)
    for name, value in headers:
        # A field may have characters that a header cannot.
        if not _TOKEN.fullmatch(name) or _CONTROL.search(value):
            raise StoreError("InvalidArgument", 400, f"The field {name[:64]!a} cannot be a header of the object.")
    return headers


def _tags(document: str) -> str:
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
