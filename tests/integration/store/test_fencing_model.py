"""The fence store the explorer uses behaves as the SQL functions do, on random histories of the object protocol."""

from dataclasses import replace
from typing import Any
from uuid import UUID

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.db import intents
from gateway.db.database import Database
from gateway.fencing.decision import Enforcement, Equal, Fence, Presented
from gateway.fencing.intent import ABSENCE, Announcement, Begun, Intent, KnownObject, MutationKind, Raised
from gateway.fencing.token import Token
from tests.model.memory import NOW, Fences

writes = st.builds(
    Announcement,
    resource=st.sampled_from(["r", "s"]),
    bucket=st.just("bucket"),
    key=st.sampled_from(["a", "b"]),
    write_id=st.sampled_from([UUID(int=1), UUID(int=2)]),
    presented=st.one_of(
        st.none(),
        st.builds(
            Presented,
            token=st.builds(Token, epoch=st.integers(0, 1), value=st.integers(0, 2)),
            holder=st.sampled_from([None, "ann", "bob"]),
        ),
    ),
    caller=st.just("tester"),
    mode=st.sampled_from(Enforcement),
    equal=st.sampled_from(Equal),
    attempt=st.integers(1, 2),
    entombs=st.booleans(),
).filter(lambda write: write.presented is not None or write.mode is Enforcement.OBSERVE)
kinds = st.sampled_from(
    [(MutationKind.CONDITIONAL, None), (MutationKind.UPLOAD, "upload"), (MutationKind.AMENDMENT, None)]
)
announcements = st.builds(lambda write, kind: replace(write, kind=kind[0], upload_id=kind[1]), writes, kinds)

calls = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "finish", "abandon", "forbid", "raise"]),
        announcements,
        st.sampled_from([None, "e1", "e2"]),
    ),
    max_size=14,
)


def timeless(answer: Any) -> Any:
    """The answer without clock readings, which the model does not have."""
    match answer:
        case Begun(decision, fence, pending, signed_at, forbidden, key, _, spent):
            sent = NOW if signed_at else None
            # The condition of a mutation that must not be sent has no meaning.
            seen = key if sent else KnownObject(None)
            spent = tuple(sorted(spent, key=lambda one: one.etag))
            return Begun(decision, timeless(fence), tuple(map(timeless, pending)), sent, forbidden, seen, spent=spent)
        case Raised(decision, fence, pending):
            return Raised(decision, timeless(fence), tuple(map(timeless, pending)))
        case Fence(resource, token, holder, caller, _, write_id):
            return Fence(resource, token, holder, caller, NOW, write_id)
        case Intent():
            return replace(answer, signed_at=NOW)
        case _:
            return answer


def looked(etag: str | None) -> KnownObject | None:
    """Return the object that the sender has seen at the key; None if it has not looked."""
    return None if etag == "e2" else KnownObject(etag, tombstone=etag is not None)


def outcomes(etag: str | None) -> tuple[str, ...] | None:
    """Return the ETags that the mutation could leave; with e1 the claim asks for all that are spent."""
    return None if etag == "e1" else ("e1", ABSENCE)


def spent(etag: str | None) -> tuple[str, ...]:
    """Return the conditions of a write's requests, with one of them twice."""
    return (ABSENCE,) if etag is None else (etag, etag)


async def real(database: Database, call: str, write: Announcement, etag: str | None) -> Any:
    intent = Intent(write.resource, write.bucket, write.key, write.write_id, Token(0, 0), etag, NOW, write.attempt)
    match call:
        case "begin":
            return await intents.begin(database, write, looked(etag), outcomes=outcomes(etag))
        case "finish":
            return await intents.finish(database, write, etag, tombstone=False, spent=spent(etag))
        case "abandon":
            return await intents.abandon(database, write, spent(etag))
        case "forbid":
            forbidden = await intents.forbid(database, intent)
            return forbidden.etags, forbidden.spent
        case _:
            presented = write.presented or Presented(Token(0, 1))
            return await intents.raise_fence(database, write.resource, presented, "tester")


def modelled(fences: Fences, call: str, write: Announcement, etag: str | None) -> Any:
    intent = Intent(write.resource, write.bucket, write.key, write.write_id, Token(0, 0), etag, NOW, write.attempt)
    match call:
        case "begin":
            return fences.begin(write, looked(etag), outcomes(etag))
        case "finish":
            return fences.finish(write, etag, tombstone=False, spent=spent(etag))
        case "abandon":
            return fences.abandon(write, spent(etag))
        case "forbid":
            forbidden = fences.forbid(intent)
            return forbidden.etags, forbidden.spent
        case _:
            presented = write.presented or Presented(Token(0, 1))
            return fences.raise_fence(write.resource, presented, "tester")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=calls)
async def test_model_and_sql_give_the_same_answers(
    database: Database, history: list[tuple[str, Announcement, str | None]]
) -> None:
    # Of so few rows the quicker way: TRUNCATE makes new files, for each table and each of its indexes.
    for table in ("fence", "intent", "forbidden", "spent", "object"):
        await database.fetch(f"DELETE FROM fencing.{table}")
    fences = Fences()
    for call, write, etag in history:
        assert timeless(await real(database, call, write, etag)) == timeless(modelled(fences, call, write, etag))
        place = (write.resource, write.bucket, write.key)
        rows = await database.fetch(
            "SELECT etag, tombstone FROM fencing.object WHERE (resource, bucket, key) = ($1, $2, $3)", *place
        )
        known = fences.known.get(place)
        assert [KnownObject(*row) for row in rows] == ([known] if known else [])
