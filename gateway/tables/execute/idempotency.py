"""Idempotency keys: replay of a kept answer, and cleanup of old answers.

A replay writes nothing, but its client relies on the write that it reports. So it acts as the write itself would. It
raises the fences of that write to the presented tokens, and settles S3 mutations of older holders. A token older than
its fence raises nothing and is not refused, because its write has been done. The replay still waits until no older
mutation is under way.
"""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

from gateway.background import background_tasks, repeat
from gateway.db.database import Database, Transaction
from gateway.db.pool import load
from gateway.errors import AnswerTooLarge, IdempotencyMismatch, Unavailable
from gateway.fencing.decision import Equal, Tokens
from gateway.observe.events import Observe
from gateway.tables.dialect import request
from gateway.tables.dialect.request import REPLAYED
from gateway.tables.dialect.response import Response
from gateway.tables.execute.fenced_write import ClaimGroup, Claims
from gateway.tables.execute.planning import Sender
from gateway.token_admission import Admission

SETTLE_ATTEMPTS = 3
MOST_KEPT = 1024 * 1024
"""Bytes of an answer that is kept under a key."""
RETENTION = 24 * 3600.0
"""Seconds, by the database's clock, for which an answer is kept."""

SettleClaims = Callable[[Claims, Sequence[str], str], Awaitable[None]]
"""Settles the mutations of older holders on some of the claimed resources, for a caller. Raises if it cannot."""

Authorise = Callable[[int, Sequence[str]], Awaitable[Sequence[str]]]
"""Returns the resources that a write, by its number, may claim. Raises ``Denied`` if an enforcing rule needs more."""


_SQL = load("idempotency")


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A key as its caller gave it, and the fingerprint of the request it came with."""

    caller: str
    text: str
    fingerprint: bytes


def key_of(sender: Sender, schema: str, headers: Mapping[bytes, str], content: bytes) -> IdempotencyKey | None:
    """Return the idempotency key of a request, if it has one. ``schema`` is the one it is for, named or not.

    Raises ``RequestMalformed`` for a malformed key.
    """
    text = request.parse_key(headers)
    if text is None:
        return None
    query = sender.query.encode("latin-1")
    fingerprint = request.fingerprint(sender.method, sender.path, schema, query, headers, content)
    return IdempotencyKey(sender.keyring, text, sender.bound(fingerprint))


@dataclass(frozen=True, slots=True)
class StoredAnswer:
    """A request with a key, by its fingerprint, and its answer.

    ``claimed``: the resources of the fences it was written under, each with the number of the write that claimed it.
    """

    fingerprint: bytes
    answer: Response
    claimed: list[tuple[str, int]]


async def take(transaction: Transaction, key: IdempotencyKey) -> StoredAnswer | None:
    """Give the key to the write under way. Return the answer of a finished write that has it already.

    If that write is still under way, wait for its end. Raise ``Unavailable`` if it takes too long.
    """
    while True:
        taken = await transaction.fetchrow(_SQL["take"], key.caller, key.text, key.fingerprint)
        if taken is not None:
            return None
        # Each statement has a snapshot of its own. Nothing here: it has just been forgotten, and is free again.
        found = await read_answer(transaction, key)
        if found is not None:
            return found


async def read_answer(executor: Database | Transaction, key: IdempotencyKey) -> StoredAnswer | None:
    """Return the answer of a finished write; None if there is none with this key."""
    row = await executor.fetchrow(_SQL["kept"], key.caller, key.text)
    if row is None:
        return None
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in json.loads(row["headers"])]
    claimed = [(resource, number) for resource, number in json.loads(row["claimed"])]
    return StoredAnswer(row["fingerprint"], Response(row["status"], headers, row["body"]), claimed)


async def store_answer(
    transaction: Transaction, key: IdempotencyKey, answer: Response, claimed: Sequence[tuple[str, int]]
) -> None:
    """Keep the answer to the write under way, for later requests with the key. ``claimed``: as of ``StoredAnswer``.

    Raises ``AnswerTooLarge``.
    """
    if len(answer.body) > MOST_KEPT:
        raise AnswerTooLarge(f"The answer has {len(answer.body)} bytes; at most {MOST_KEPT} are kept under a key.")
    headers = json.dumps([(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers])
    kept = (answer.status, headers, answer.body, json.dumps(claimed))
    await transaction.execute(_SQL["keep"], key.caller, key.text, *kept)


class IdempotentReplay:
    """Replays answers. ``shown`` has the tokens of each write of the request, in order; None if it shows none."""

    def __init__(self, database: Database, admission: Admission, settle: SettleClaims) -> None:
        self._database, self._admission, self._settle = database, admission, settle

    async def kept(
        self, key: IdempotencyKey, shown: Sequence[Tokens | None], caller: str, authorise: Authorise
    ) -> Response | None:
        """Raise the fences, then return the answer kept under a key. Return None if there is none yet.

        ``authorise`` checks the resources of each write by its number, since a grant may have been withdrawn.

        Raises ``IdempotencyMismatch``, ``OutcomeUnknown`` if no standby has the answer, and ``Unavailable`` if the
        fences cannot be raised.
        """
        kept = await read_answer(self._database, key)
        if kept is None:
            return None
        if kept.fingerprint != key.fingerprint:
            raise IdempotencyMismatch(f"The Idempotency-Key {key.text!r} came with another request before.")
        for number, tokens in enumerate(shown):
            claimed = await authorise(number, [resource for resource, by in kept.claimed if by == number])
            await self._raise_fences(_claims(claimed, tokens), caller)
        return kept.answer._replace(headers=[*kept.answer.headers, REPLAYED])

    async def _raise_fences(self, claims: Claims, caller: str) -> None:
        implausible = await self._admission.admit(claims.shown())
        claims = claims.without({one.resource for one in implausible})
        if not claims.groups:
            return
        for _ in range(SETTLE_ATTEMPTS):
            pending = await self._database.run(lambda transaction: claims.raise_fences(transaction, caller))
            if not pending:
                return
            # A newer holder may have come meanwhile. It then settles these mutations itself, and takes its time.
            await self._settle(claims, pending, caller)
        raise Unavailable("Writes of an older holder are still being settled on this resource.")


def _claims(resources: Sequence[str], tokens: Tokens | None) -> Claims:
    """Return claims of those of a write's resources that a token is shown for now."""
    if tokens is None:
        return Claims((), frozenset())
    named = tuple(sorted(one for one in resources if tokens.token is not None or one in tokens.pairs))
    return Claims((ClaimGroup(named, tokens, Equal.ACCEPT),) if named else (), frozenset())


CLEANUP_INTERVAL = 60.0
"""Seconds between two rounds of the cleanup."""

_BATCH = 500
_MOST_BATCHES = 100


def cleanup(
    database: Database, retention: float, observe: Observe, interval: float = CLEANUP_INTERVAL
) -> AbstractAsyncContextManager[None]:
    """Delete old answers in the background. ``retention``: seconds by the database's clock. A failure is an event.

    This only saves space. Several gateways may do it at once, and an answer that is still there is replayed.
    """
    work = partial(delete_old, database, retention)
    return background_tasks(repeat("answers under idempotency keys", work, observe, interval))


async def delete_old(database: Database, retention: float) -> int:
    """Delete answers older than ``retention`` in small batches, so that no transaction is long. Return how many."""
    deleted = 0
    for _ in range(_MOST_BATCHES):
        batch = await database.run(lambda transaction: transaction.fetch(_SQL["forget"], retention, _BATCH))
        deleted += len(batch)
        if len(batch) < _BATCH:
            break
    return deleted
