"""One request to the store and what its answer means: what the operations on the store are made of."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import quote

from gateway.config.stores import ObjectStore
from gateway.errors import OutcomeUnknown, Unavailable
from gateway.objects.s3.answers import Headers, NotApplied, NotSent, Rejected, Unknown, WriteAnswer, of_write
from gateway.objects.store.client import BodyStream, Hop, TextHeaders
from gateway.observe.events import Observe, ignore

_ACCEPTED = 202


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer of the store as it came, for passing on."""

    status: int
    headers: Headers
    body: bytes


class Exchange(Hop):
    """One object store. ``quoted_conditions`` False sends ``If-Match`` without quotation marks."""

    def __init__(self, config: ObjectStore, observe: Observe = ignore, *, quoted_conditions: bool = True) -> None:
        super().__init__(config, observe)
        self._quoted = quoted_conditions
        self._unquoted: set[str] = set()

    def drop_quotes(self, bucket: str) -> None:
        """From now on send ``If-Match`` to this bucket without quotation marks: its probe found them refused."""
        self._unquoted.add(bucket)

    async def exchange(
        self,
        method: str,
        raw_path: str,
        query: str,
        headers: TextHeaders,
        body: bytes | BodyStream,
        *,
        signed_at: datetime,
        expires: timedelta | None = None,
    ) -> tuple[WriteAnswer, Reply | None]:
        """What the store says to a write, and how it says it; None where it did not come to that."""
        try:
            response = await self.send(method, raw_path, query, headers, body, signed_at=signed_at, expires=expires)
        except Unavailable as error:
            return NotSent(error.message), None
        except OutcomeUnknown as error:
            return Unknown(error.message), None
        async with response:
            try:
                document = await response.read()
            except Unavailable as error:
                return Unknown(error.message), None
            reply = Reply(response.status, response.headers, document)
            status = 200 if reply.status == _ACCEPTED else reply.status
            answer = of_write(status, response.header("etag"), document, reply.headers)
            return (answer if expires is None else _of_our_signature(answer)), reply

    def condition(self, bucket: str, expected: str | None) -> tuple[str, str]:
        """The header that makes a write hold only where the key's ETag is ``expected``; None: where there is none."""
        if expected is None:
            return "if-none-match", "*"
        quoted = self._quoted and bucket not in self._unquoted
        return "if-match", f'"{expected}"' if quoted else expected


def path(bucket: str, raw_key: str) -> str:
    """Where an object is, as it stands on the wire."""
    return f"/{bucket}/{raw_key}"


def query_of(parameters: Mapping[str, object]) -> str:
    """A query, encoded in the one way all stores read alike. A value of None leaves its parameter out."""
    return "&".join(f"{name}={quote(str(value), safe='')}" for name, value in parameters.items() if value is not None)


def _of_our_signature(answer: WriteAnswer) -> WriteAnswer:
    """S3 has no code of its own for a signature in the query that has expired."""
    if isinstance(answer, Rejected) and answer.code == "AccessDenied" and "expired" in answer.message.lower():
        return Rejected(answer.status, "RequestExpired", answer.message)
    return answer


def refused(answer: NotApplied | Rejected | NotSent | Unknown) -> Rejected | NotSent | Unknown:
    """For a step that has no condition to fail: what looks like that is a refusal."""
    if isinstance(answer, NotApplied):
        return Rejected(answer.status, answer.code, f"The store answered with {answer.status}.")
    return answer
