"""An S3 request, stage by stage: address, authenticate, parse, authorise, dispatch, respond.

Form uploads and preflights leave after the first stage: a form is signed in its fields, a preflight is never signed.
The last two stages belong to the handler of the operation. A handler of writes goes through the stages of
``fenced_write.py``; ``protocol/mutation.py`` decides what happens in Postgres and in the store.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import blake2b
from itertools import chain
from secrets import token_bytes
from typing import TypeAlias

from starlette.types import Receive, Scope, Send

from gateway import budget
from gateway.auth.grants import NO_RIGHTS
from gateway.auth.sigv4 import ProvenClaim, RequestHead, Signers, VerifiedSignature
from gateway.bounded import Bounded
from gateway.db.database import Database
from gateway.errors import GatewayError, StoreError
from gateway.fencing.decision import Decision, Fence, Presented
from gateway.fencing.intent import LATE_AFTER, Duplicates
from gateway.fencing.ownership import Ownership
from gateway.http import origins
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import Head
from gateway.objects.authorisation import ObjectAuthorisation, StoreRights
from gateway.objects.buckets import Administration
from gateway.objects.bypass import BypassScan
from gateway.objects.copy import Copies, Sources
from gateway.objects.delete import Amendments, Deletes
from gateway.objects.exchange import Exchange, ResponseWriter
from gateway.objects.fenced_write import FencedWrites, unavailable
from gateway.objects.form import FormUploads
from gateway.objects.key_rules import Resources
from gateway.objects.multipart import Uploads
from gateway.objects.protocol import mutation
from gateway.objects.protocol.effects import Barred, FenceRefused, NotDone
from gateway.objects.protocol.runner import Runner
from gateway.objects.put import Puts
from gateway.objects.reads import Listings, Reads
from gateway.objects.s3 import addressing
from gateway.objects.s3.answers import RawHeaders
from gateway.objects.s3.operations import Operation, OperationKind
from gateway.objects.s3.request import S3Request, classify, combined
from gateway.objects.store.operations import Upstream
from gateway.objects.store.probe import Profiles
from gateway.objects.sweeper import Sweeper
from gateway.observe.events import Observe
from gateway.record.payload_capture import NOTHING, Capture
from gateway.record.refusals import Audit, Denials
from gateway.token_admission import Admission

Handler: TypeAlias = Callable[[Exchange], Awaitable[None]]

_MOST_HEADS = 1024
"""Heads of reads that are kept: those of links, and of clients that ask again within a second."""
_LONGEST_HEAD = 2 * 1024
_KEY = token_bytes(16)


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings for the object plane.

    ``domains``: hosts under which a bucket may be a label of its own. In bytes: ``max_body`` of one request,
    ``threshold`` up to which a body is put from memory. ``pending_wait`` in seconds. ``capture``: what the record keeps
    of the payloads of refused writes. ``duplicates``: what a write does where a finished request may arrive again.
    ``late_after``: how long a request can take to have its effect.
    """

    domains: tuple[str, ...]
    max_body: int
    threshold: int
    pending_wait: float
    capture: Capture = NOTHING
    duplicates: Duplicates = Duplicates.TOLERATE
    late_after: timedelta = LATE_AFTER


class Neighbours:
    """The planes of all databases. Without rules of ownership there is only one.

    In a bucket that several databases share, each fences the keys that it owns. A request about one key reaches the
    plane of that key at once. Lists of keys, forms and listings reach the plane of their bucket, which finds the others
    here. So each key is fenced by its own plane, whatever the request names it in.
    """

    def __init__(self, ownership: Ownership | None = None) -> None:
        self._ownership = ownership
        self._planes: dict[str, ObjectPlane] = {}

    def join(self, database: str | None, plane: "ObjectPlane") -> None:
        """Add the plane of a database. Its requests come later."""
        self._planes[database or ""] = plane

    def of_key(self, bucket: str, key: str) -> "ObjectPlane":
        return self._planes["" if self._ownership is None else self._ownership.of_key(bucket, key)]

    def of_keys(self, bucket: str, prefix: str) -> "list[ObjectPlane]":
        names = [""] if self._ownership is None else self._ownership.of_keys(bucket, prefix)
        return [self._planes[name] for name in names]

    def is_shared(self, bucket: str) -> bool:
        return len(self.of_keys(bucket, "")) > 1

    def check_source(self, request: S3Request, plane: "ObjectPlane") -> None:
        """Raise ``StoreError`` if a copy that reaches a plane reads a bucket in another store."""
        if request.source is None or self._ownership is None:
            return
        other = self._planes.get(self._ownership.of_bucket(request.source.bucket))
        if other is None or other.upstream is not plane.upstream:
            raise StoreError("NotImplemented", 501, "A copy cannot have its source in another store. Upload it.")


class ObjectPlane:
    """An ASGI app: S3, for the buckets of one store."""

    forms: FormUploads
    deletes: Deletes

    def __init__(  # noqa: PLR0913 - each subject needs one part, passed by name
        self,
        *,
        database: Database,
        upstream: Upstream,
        profiles: Profiles,
        resources: Resources,
        signers: Signers,
        admission: Admission,
        denials: Denials,
        observe: Observe,
        settings: Settings,
        bodies: BodyReader,
        neighbours: Neighbours,
    ) -> None:
        """``neighbours``: the planes of the other databases. This one has joined them when a request comes."""
        self.database, self.upstream, self._neighbours = database, upstream, neighbours
        self._bodies, self._signers, self._settings = bodies, signers, settings
        self._known: Bounded[bytes, tuple[ProvenClaim, S3Request]] = Bounded(_MOST_HEADS)
        self._runner = Runner(
            *(database, upstream, profiles, observe, settings.pending_wait, resources, settings.duplicates),
            late_after=settings.late_after,
        )
        scan = BypassScan(database, upstream, resources, observe)
        self.sweeper = Sweeper(database, upstream, profiles, self._runner, observe, scan)
        self._reads = Reads(upstream)
        self._listings = Listings(lambda *place: [each.database for each in neighbours.of_keys(*place)], upstream)
        audit = Audit(database, observe, "objects")
        public = NO_RIGHTS if signers.anonymous is None else signers.anonymous.rights
        rights = StoreRights(upstream, resources, public)
        authorisation = self._authorisation = ObjectAuthorisation(resources, profiles, denials, rights)
        self._administration = Administration(
            *(database, upstream, profiles, self._listings, self.sweeper, rights, authorisation.administers, observe),
            is_shared=neighbours.is_shared,
        )
        writes = FencedWrites(
            *(database, profiles, resources, self._runner, audit, admission, authorisation.writes, observe)
        )
        puts = Puts(database, upstream, writes, bodies.memory, settings.threshold)
        self.forms = FormUploads(
            *(puts, signers, lambda *place: neighbours.of_key(*place).forms, settings.max_body, settings.capture),
        )
        amendments = Amendments(upstream, writes, rights)
        self.deletes = Deletes(puts, amendments, lambda *place: neighbours.of_key(*place).deletes)
        self._handlers = {**self._listing_handlers(), **self._write_handlers(puts, amendments)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = ResponseWriter(scope, send)
        try:
            await self._serve(scope, receive, response)
        except GatewayError as error:
            await response.error(error, () if response.started else await self._cors(scope))
        except ClientGone:
            # Until the server has noticed the disconnect itself, it takes a missing answer for a fault of the app.
            while (await receive())["type"] != "http.disconnect":
                pass

    async def _serve(self, scope: Scope, receive: Receive, response: ResponseWriter) -> None:
        """Address the request, and dispatch it: a form, a preflight, or a request that is signed in its head."""
        head, body = Head.of(scope), self._bodies.of(scope, receive)
        signed = RequestHead(head.method, head.raw_path, head.query_string, combined(head.headers))
        host_bucket = addressing.bucket_of_host(head.headers, self._settings.domains)
        form_bucket = self.forms.bucket(signed, host_bucket) if head.method == "POST" else None
        if form_bucket is not None:
            await self.forms.post(form_bucket, scope, head, body, response, hosted=host_bucket is not None)
        elif head.method == "OPTIONS":
            await self._reads.preflight(signed, host_bucket, response)
        else:
            signature, request = self._understand(signed, head, scope, host_bucket)
            self._neighbours.check_source(request, self)
            settings, hosted = self._settings, host_bucket is not None
            exchange = Exchange(
                scope, head, body, response, request, signature, settings.max_body, hosted, settings.capture
            )
            exchange = await self._authorisation.check(exchange)
            await self._handler(request.operation)(exchange)

    async def _cors(self, scope: Scope) -> RawHeaders:
        head = Head.of(scope)
        asked = RequestHead(head.method, head.raw_path, head.query_string, head.headers)
        return await self._reads.cors(asked, addressing.bucket_of_host(head.headers, self._settings.domains))

    def _understand(
        self, signed: RequestHead, head: Head, scope: Scope, host_bucket: str | None
    ) -> tuple[VerifiedSignature, S3Request]:
        """Authenticate and parse a request. A read with a known head, to the letter, is not parsed again."""
        mark = _mark(head) if head.method in ("GET", "HEAD") else b""
        proven, request = self._known.get(mark, (None, None))
        signature = self._authenticate(signed, head, scope, proven)
        if request is None:
            request = classify(head.method, head.raw_path, head.query_string, signed.headers, host_bucket)
            if mark and signature.proven is not None:
                self._known.remember(mark, (signature.proven, request))
        return signature, request

    def _authenticate(
        self, signed: RequestHead, head: Head, scope: Scope, proven: ProvenClaim | None
    ) -> VerifiedSignature:
        """Verify the signature of the head, and name its caller to the log.

        Without one the caller is that of the certificate, or anonymous. A certificate is good for programs alone. An
        object may be a page with scripts, and the browser of another caller would run them under its certificate.
        """
        certificate = head.certificate
        if certificate is not None and origins.sender(head.headers) is not origins.Sender.PROGRAM:
            certificate = None
        signature = self._signers.verify(signed, certificate, proven)
        signature.principal.use.note()
        budget.serve(scope["state"], signature.principal.name)
        if signature.principal.is_anonymous and head.method == "POST":
            # Browsers ask for the bucket's CORS rules before any other method that writes.
            origins.check(head.method, head.headers)
        return signature

    def _handler(self, operation: Operation) -> Handler:
        """Return the handler of an operation. Only an operation that is known to change nothing may lack one."""
        if operation.kind is OperationKind.READ:
            return self._handlers.get(operation, self._reads.read)
        if operation.kind is OperationKind.ADMINISTRATION:
            return self._administration.administer
        return self._handlers[operation]

    def _listing_handlers(self) -> Mapping[Operation, Handler]:
        return {
            Operation.LIST_BUCKETS: self._listings.list_buckets,
            Operation.LIST_OBJECTS: self._listings.list_objects,
            Operation.LIST_OBJECTS_V2: self._listings.list_objects,
            Operation.LIST_OBJECT_VERSIONS: self._listings.list_versions,
            Operation.LIST_MULTIPART_UPLOADS: self._listings.list_uploads,
        }

    def _write_handlers(self, puts: Puts, amendments: Amendments) -> Mapping[Operation, Handler]:
        sources, deletes = Sources(self.upstream), self.deletes
        uploads, copies = Uploads(puts, sources), Copies(puts, sources)
        return {
            Operation.PUT_OBJECT: puts.put,
            Operation.POST_OBJECT: self.forms.refuse,
            Operation.COPY_OBJECT: copies.copy,
            Operation.DELETE_OBJECT: deletes.delete,
            Operation.DELETE_OBJECTS: deletes.delete_many,
            Operation.CREATE_MULTIPART_UPLOAD: uploads.create,
            Operation.UPLOAD_PART: uploads.part,
            Operation.UPLOAD_PART_COPY: uploads.part_copy,
            Operation.ABORT_MULTIPART_UPLOAD: uploads.abort,
            Operation.COMPLETE_MULTIPART_UPLOAD: uploads.complete,
            **{operation: amendments.amend for operation in Operation if operation.amends},
        }

    async def barrier(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]:
        """Raise the fence of a resource, and settle what older holders have under way in the store.

        Return what the fence says; nothing is recorded here. Raises ``Unavailable`` while something is unsettled.
        """
        outcome = await self._runner.run(mutation.barrier(resource, presented, caller))
        if isinstance(outcome, Barred | FenceRefused):
            return outcome.decision, outcome.fence
        assert isinstance(outcome, NotDone)
        raise unavailable(outcome, f"The barrier does not stand yet: {outcome.reason}.", self._runner.now())


def _mark(head: Head) -> bytes:
    """Return a digest of a head, which may have secrets. Nothing in it has a zero byte. Empty: not to be kept."""
    fields = chain((head.method.encode(), head.raw_path, head.query_string), *head.headers)
    text = b"\0".join(fields)
    return b"" if len(text) > _LONGEST_HEAD else blake2b(text, digest_size=16, key=_KEY).digest()
