"""One request to the object plane, once it is known who sent it and what it asks for."""

from dataclasses import dataclass

from starlette.types import Scope

from gateway.auth.principal import Principal
from gateway.auth.sigv4 import VerifiedSignature
from gateway.errors import GatewayError
from gateway.fencing.record import Attempt, Captured
from gateway.http.body import Body
from gateway.http.head import Head
from gateway.objects.body.chunked import VerifiedBody
from gateway.objects.body.intake import Intake, media_type_of
from gateway.objects.responses import Answer
from gateway.objects.s3.documents import MAX_DOCUMENT
from gateway.objects.s3.request import S3Request
from gateway.record.capture import NOTHING, Capture


@dataclass(frozen=True, slots=True)
class Call:
    """A request that is proven and classified.

    ``max_body`` is in bytes, decoded. ``hosted``: its bucket stands in the host, not in the path. ``capture``: what is
    to be kept of its body, should it be refused.
    """

    scope: Scope
    head: Head
    body: Body
    answer: Answer
    request: S3Request
    signature: VerifiedSignature
    max_body: int
    hosted: bool = False
    capture: Capture = NOTHING

    @property
    def principal(self) -> Principal:
        return self.signature.principal

    @property
    def body_is_held_back(self) -> bool:
        """Whether the client sends its body only when it is told to go on."""
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.head.headers)

    @property
    def address(self) -> str:
        """Where the object is, as its client would ask for it."""
        host = next((value.decode("latin-1") for name, value in self.head.headers if name == b"host"), "")
        path = f"/{self.request.raw_key}" if self.hosted else self.request.raw_path
        return f"{self.scope.get('scheme', 'http')}://{host}{path}"

    def intake(self, max_size: int | None = None) -> Intake:
        """The body, not asked for yet. Raises ``BodyTooLarge``, or ``StoreError`` for a head that cannot be right."""
        size = self.max_body if max_size is None else min(max_size, self.max_body)
        headers = [*self.head.headers, *((name.encode(), value.encode()) for name, value in self.request.hoisted)]
        return Intake(self.body, headers, self.signature, size, self.capture)

    async def document(self) -> VerifiedBody:
        """Return a body that is a document of S3's, in memory. Raises what ``Intake.whole`` raises."""
        intake = self.intake(MAX_DOCUMENT)
        await self.body.reserve(intake.length)
        return await intake.whole()

    async def beginning(self) -> Captured | None:
        """What is kept of a body that has not been asked for, and is not going to be."""
        if not self.capture.most:
            return None
        if self.body_is_held_back:
            return Captured(media_type_of(self.head.headers), left_out="the client was not asked for it")
        try:
            intake = self.intake()
        except GatewayError:
            return None  # its head cannot be right
        return await intake.beginning()

    def attempt(self) -> Attempt:
        """How the request goes on record."""
        path, query = self.head.raw_path.decode("latin-1"), self.head.query_string.decode("latin-1")
        state = self.scope["state"]
        return Attempt(
            token=self.request.fencing.token,
            holder=self.request.fencing.holder,
            caller=self.principal.name,
            method=self.head.method,
            target="?".join(filter(None, (path, query))),
            client=state["client"],
            request_id=state["request_id"],
            plane="objects",
        )
