"""An earlier attempt of the same call: whether it has written the object that stands at the key.

The SDKs of AWS send a request again by themselves, with one id for all attempts of a call. If the first attempt took
effect and its answer got lost, the second one is refused: the key has changed. The refusal then says what became of the
first. So each object has in its metadata which call has written it.
"""

import asyncio
import hashlib
import re
from collections.abc import Iterable
from contextlib import suppress
from typing import cast
from uuid import UUID

from gateway.errors import GatewayError
from gateway.objects.exchange import Exchange
from gateway.objects.protocol.effects import Look, Steps
from gateway.objects.protocol.runner import Runner
from gateway.objects.s3.answers import Found, HeadAnswer
from gateway.objects.s3.operations import Operation

EVIDENCE_TIMEOUT = 1.0
"""Seconds that a refused writer waits for the store to say whose object stands at its key."""

_INVOCATION = b"amz-sdk-invocation-id"
_VISIBLE = re.compile(rb"[!-~]{1,128}")


def evidence_of(exchange: Exchange, mark: UUID) -> str | None:
    """Return the mark that an earlier attempt of the same call has left, if it has written the object at the key."""
    request = exchange.request
    match request.operation:
        case Operation.COMPLETE_MULTIPART_UPLOAD:
            return str(mark)
        case Operation.PUT_OBJECT | Operation.COPY_OBJECT:
            return digest(exchange.head.headers, exchange.principal.name, request.bucket, request.key)
        case _:
            return None


def digest(headers: Iterable[tuple[bytes, bytes]], caller: str, bucket: str, key: str) -> str | None:
    """Return the mark of a call in the metadata of the object it writes; None if the client names no call.

    No caller can name the call of another caller, or of another key. ``headers`` are raw, with names in lower case.
    """
    named = [value for name, value in headers if name == _INVOCATION]
    if len(named) != 1 or not _VISIBLE.fullmatch(named[0]):
        return None
    parts = (named[0], caller.encode(), bucket.encode(), key.encode())
    # A hash of hashes: no two calls have one text.
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()[:32]


async def told(error: GatewayError, runner: Runner, bucket: str, key: str, evidence: str | None) -> GatewayError:
    """Return the error, which says so where an earlier attempt of the same call stands at the key.

    This is about the earlier attempt only: the refused one has written nothing. The gateway does not wait for a store
    that is slow or away.
    """
    if evidence is None:
        return error
    with suppress(GatewayError, TimeoutError):
        async with asyncio.timeout(EVIDENCE_TIMEOUT):
            there = await runner.run(_look(bucket, key))
        if isinstance(there, Found) and evidence in (there.invocation, there.write_id):
            error.message += (
                " This request has written nothing, but an earlier attempt of it took effect: it wrote the object that "
                "stands at the key."
            )
            error.facts["earlier-attempt"] = "took-effect"
    return error


def _look(bucket: str, key: str) -> Steps[HeadAnswer]:
    return cast(HeadAnswer, (yield Look(bucket, key)))
