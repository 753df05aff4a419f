"""The object plane: S3 requests come in here. Proven, classified, and handed to whoever is in charge of them."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from starlette.types import Receive, Scope, Send

from gateway.admission import Admission
from gateway.auth import sigv4
from gateway.auth.principal import SecretOf
from gateway.auth.sigv4 import RequestHead
from gateway.db.database import Database
from gateway.errors import GatewayError
from gateway.fencing.intent import Duplicates
from gateway.fencing.rules import Decision, Fence, Presented
from gateway.http.body import BodyReader, ClientGone
from gateway.http.head import Head
from gateway.objects.background.bypass_scan import Patrol
from gateway.objects.background.sweeper import Sweeper
from gateway.objects.bucket_administration import Administration
from gateway.objects.call import Call
from gateway.objects.credential_scope import ReadScope
from gateway.objects.list_objects import Listings
from gateway.objects.probe.probe import Profiles
from gateway.objects.protocol import generator
from gateway.objects.protocol.effects import Barred, NotDone, Refused
from gateway.objects.reads import Reads
from gateway.objects.resource_rules import Resources
from gateway.objects.responses import Answer
from gateway.objects.run.runner import Runner
from gateway.objects.s3 import addressing
from gateway.objects.s3.addressing import bucket_of_host
from gateway.objects.s3.operations import Kind, Operation
from gateway.objects.s3.request import classify
from gateway.objects.store.operations import Upstream
from gateway.objects.writes.amend import Amendments
from gateway.objects.writes.copy import Copies, Sources
from gateway.objects.writes.delete import Deletes
from gateway.objects.writes.fenced_write import Writes, unavailable
from gateway.objects.writes.form import Forms
from gateway.objects.writes.multipart_upload import Uploads
from gateway.objects.writes.put import Puts
from gateway.observe.events import Observe
from gateway.record.audit import Audit
from gateway.record.capture import NOTHING, Capture


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator decides about the object plane.

    ``domains``: hosts under which a bucket may be a label of its own. In bytes: ``max_body`` of one request,
    ``threshold`` up to which a body is put from memory. ``pending_wait`` in seconds. ``capture``: what is kept of the
    payloads of refused writes. ``duplicates``: what a write does where a request that is over may arrive again.
    """

    domains: tuple[str, ...]
    max_body: int
    threshold: int
    pending_wait: float
    capture: Capture = NOTHING
    duplicates: Duplicates = Duplicates.TOLERATE


class ObjectPlane:
    """An ASGI app: S3, for the buckets of one store."""

    def __init__(
        self,
        *,
        database: Database,
        upstream: Upstream,
        profiles: Profiles,
        resources: Resources,
        secret_of: SecretOf,
        admission: Admission,
        observe: Observe,
        clock: Callable[[], datetime],
        settings: Settings,
        bodies: BodyReader,
    ) -> None:
        """``clock`` judges the age of signatures."""
        self._bodies, memory = bodies, bodies.memory
        self._secret_of = secret_of
        self._clock = clock
        self._settings = settings
        self._runner = Runner(
            database, upstream, profiles, observe, settings.pending_wait, resources, settings.duplicates
        )
        threshold = settings.threshold
        audit = Audit(database, observe, "objects")
        writes = Writes(database, profiles, resources, self._runner, audit, admission, observe)
        sources = Sources(upstream)
        puts = Puts(database, upstream, writes, memory, threshold)
        uploads = Uploads(database, upstream, writes, sources, memory, threshold)
        copies = Copies(database, upstream, writes, puts, sources, memory, threshold)
        amendments = Amendments(upstream, writes)
        deletes = Deletes(writes, amendments)
        self._forms = Forms(
            writes,
            puts,
            secret_of,
            clock,
            domains=settings.domains,
            max_body=settings.max_body,
            bodies=bodies,
            capture=settings.capture,
        )
        self._reads = Reads(upstream)
        self._scope = ReadScope(resources, profiles)
        patrol = Patrol(database, upstream, resources, observe)
        self.sweeper = Sweeper(database, upstream, profiles, self._runner, observe, patrol)
        listings = Listings(database, upstream)
        self._administration = Administration(database, upstream, profiles, listings, self.sweeper, observe)
        self._handlers: Mapping[Operation, Callable[[Call], Awaitable[None]]] = {
            Operation.PUT_OBJECT: puts.put,
            Operation.POST_OBJECT: self._forms.refuse,
            Operation.COPY_OBJECT: copies.copy,
            Operation.DELETE_OBJECT: deletes.delete,
            Operation.DELETE_OBJECTS: deletes.delete_many,
            Operation.CREATE_MULTIPART_UPLOAD: uploads.create,
            Operation.UPLOAD_PART: uploads.part,
            Operation.UPLOAD_PART_COPY: uploads.part_copy,
            Operation.ABORT_MULTIPART_UPLOAD: uploads.abort,
            Operation.COMPLETE_MULTIPART_UPLOAD: uploads.complete,
            Operation.LIST_OBJECTS: listings.list_objects,
            Operation.LIST_OBJECTS_V2: listings.list_objects,
            Operation.LIST_OBJECT_VERSIONS: listings.list_versions,
            Operation.LIST_MULTIPART_UPLOADS: listings.list_uploads,
            **{operation: amendments.amend for operation in Operation if operation.amends},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = Answer(scope, send)
        try:
            sent = Head.of(scope)
            head = RequestHead(sent.method, sent.raw_path, sent.query_string, sent.headers)
            form = self._forms.bucket(head)
            if form is not None:
                await self._forms.post(form, scope, receive, answer)
            elif head.method == "OPTIONS":
                place = addressing.read(head.raw_path, bucket_of_host(head.headers, self._settings.domains))
                await self._reads.preflight(head, *place, answer)
            else:
                await self._serve(head, scope, receive, answer)
        except GatewayError as error:
            await answer.error(error)
        except ClientGone:
            # The server takes an answer that is not there for our mistake, until it has heard of that itself.
            while (await receive())["type"] != "http.disconnect":
                pass

    async def _serve(self, head: RequestHead, scope: Scope, receive: Receive, answer: Answer) -> None:
        """A request that is signed in its head."""
        signature = sigv4.verify(head, self._secret_of, self._clock())
        scope["state"]["caller"] = signature.principal.name
        request = classify(head.method, head.raw_path, head.query_string, head.headers, self._settings.domains)
        await self._scope.check(request, signature.principal.grant)
        settings, hosted = self._settings, bucket_of_host(head.headers, self._settings.domains) is not None
        body = self._bodies.of(scope, receive)
        call = Call(
            scope, Head.of(scope), body, answer, request, signature, settings.max_body, hosted, settings.capture
        )
        try:
            await self._handler(request.operation)(call)
        finally:
            body.release()

    async def barrier(self, resource: str, presented: Presented, caller: str) -> tuple[Decision, Fence]:
        """Raise the fence of a resource and settle what older holders have under way in the store.

        Returns what the fence says; nothing is recorded here. Raises ``Unavailable`` while something is unsettled.
        """
        outcome = await self._runner.run(generator.barrier(resource, presented, caller))
        if isinstance(outcome, Barred | Refused):
            return outcome.decision, outcome.fence
        assert isinstance(outcome, NotDone)
        raise unavailable(outcome, f"The barrier does not stand yet: {outcome.reason}.")

    def _handler(self, operation: Operation) -> Callable[[Call], Awaitable[None]]:
        """Whoever is in charge. Only what is known to change nothing may pass without one of its own."""
        if operation.kind is Kind.READ and operation not in self._handlers:
            return self._reads.read
        if operation.kind is Kind.ADMINISTRATION:
            return self._administration.administer
        return self._handlers[operation]
