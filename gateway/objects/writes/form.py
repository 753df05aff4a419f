"""PostObject: the upload of a browser's form, which is a PutObject that its fields describe and its policy allows."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from starlette.types import Receive, Scope

from gateway.auth import post_policy
from gateway.auth.principal import SecretOf
from gateway.auth.sigv4 import PayloadMode, RequestHead, VerifiedSignature
from gateway.errors import StoreError, TokenRequired
from gateway.http.body import BodyReader
from gateway.http.head import Head
from gateway.objects.body import form_fields
from gateway.objects.body.form_fields import Form
from gateway.objects.body.form_intake import FormIntake, is_form_upload
from gateway.objects.call import Call
from gateway.objects.protocol.effects import Stored
from gateway.objects.responses import Answer
from gateway.objects.s3 import addressing, documents
from gateway.objects.writes.fenced_write import Write, Writes
from gateway.objects.writes.put import Puts
from gateway.record.capture import NOTHING, Capture

_UNPROVEN = ("x-amz-", "x-fencing-", "fencing-", "if-")


class Forms:
    """Form uploads. They prove who sent them by their fields, so they come in by a door of their own.

    Nothing but a PostObject comes through it: the operation is not read from the request. ``max_body``: the largest
    file, in bytes; ``clock`` judges the age of policies.
    """

    def __init__(
        self,
        writes: Writes,
        puts: Puts,
        secret_of: SecretOf,
        clock: Callable[[], datetime],
        *,
        domains: tuple[str, ...],
        max_body: int,
        bodies: BodyReader,
        capture: Capture = NOTHING,
    ) -> None:
        self._writes = writes
        self._puts = puts
        self._secret_of = secret_of
        self._clock = clock
        self._domains = domains
        self._max_body = max_body
        self._bodies = bodies
        self._capture = capture

    def bucket(self, head: RequestHead) -> str | None:
        """The bucket that a form is posted to; None for every other request."""
        if head.method != "POST" or head.query_string or not is_form_upload(head.headers):
            return None
        bucket, key = addressing.read(head.raw_path, addressing.bucket_of_host(head.headers, self._domains))
        return bucket if bucket and not key else None

    async def post(self, bucket: str, scope: Scope, receive: Receive, answer: Answer) -> None:
        """PostObject. Raises ``GatewayError``, ``ClientGone``."""
        head, body = Head.of(scope), self._bodies.of(scope, receive)
        _check_headers(head.headers)
        intake = FormIntake(body, head.headers, self._max_body, self._capture)
        fields, filename = await intake.fields()
        named = form_fields.named(fields, filename, bucket)
        policy = post_policy.verify(named, self._secret_of, self._clock())
        scope["state"]["caller"] = policy.principal.name
        form = form_fields.read(named)
        media_type = dict(form.request.headers).get("content-type", "")
        intake.expect(form.declared, policy.min_length, policy.max_length, media_type)
        signature = VerifiedSignature(policy.principal, PayloadMode.UNSIGNED)
        hosted = addressing.bucket_of_host(head.headers, self._domains) is not None
        call = Call(scope, head, body, answer, form.request, signature, self._max_body, hosted)
        write = await self._write(call, intake)
        await _tell(call, form, write, await self._puts.store_form(write, intake, form.request.headers))

    async def refuse(self, call: Call) -> None:
        """A PostObject that is no form."""
        raise StoreError(
            "PreconditionFailed",
            412,
            f"{call.request.operation} takes a form: Content-Type multipart/form-data, and no query.",
            facts={"condition": "Bucket POST must be of the enclosure-type multipart/form-data"},
        )

    async def _write(self, call: Call, intake: FormIntake) -> Write:
        try:
            return await self._writes.write(call, beginning=intake.beginning)
        except TokenRequired as error:
            advice = "Give the form a field x-amz-meta-fencing-token with a condition for it in its policy."
            raise TokenRequired(error.message, advice=advice, facts=error.facts) from error


async def _tell(call: Call, form: Form, write: Write, stored: Stored) -> None:
    applied, resource, fence = stored.applied, write.target.resource, stored.fence
    etag = applied.etag or ""
    address = form_fields.address(form, etag)
    if address is not None:
        await call.answer.redirected(address, resource, fence)
        return
    location = call.address
    headers = (*applied.headers, (b"location", location.encode("latin-1", "replace")))
    document = documents.posted(location, write.bucket, write.key, etag) if form.status == 201 else b""
    await call.answer.stored(replace(applied, headers=headers), resource, fence, document, form.status)


def _check_headers(headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Of a form only the fields are signed: a header that means something could be anybody's."""
    names = {name.decode("latin-1").lower() for name, _ in headers}
    if "authorization" in names:
        raise StoreError(
            "InvalidArgument", 400, "Only one authorization is allowed: a form is signed in its fields, by its policy."
        )
    folded = {name.replace("_", "-") for name in names}
    if unproven := sorted(name for name in folded if name.startswith(_UNPROVEN) or name == "content-md5"):
        raise StoreError(
            "AccessDenied",
            403,
            f"There were headers present in the request which were not signed: {', '.join(unproven)}. "
            "Send them as fields of the form, with conditions for them in its policy.",
        )
