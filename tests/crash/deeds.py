"""The writes of these tests' clients, and the ways in which a new holder takes over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from tests.crash.clients import Answer, Client
from tests.crash.story import Deed, Place

Takeover: TypeAlias = Callable[[bytes | None], tuple[Deed, ...]]
"""The writes of the new holder, given the object that was at the key at first."""

_MERGE = "resolution=merge-duplicates"


def put(body: bytes, **headers: str) -> Deed:
    return Deed("put", lambda client, place: client.put(place.key, body, **headers), body=body)


def delete(*, shows: bool = True) -> Deed:
    """``shows`` False: there is nothing to delete."""
    return Deed("delete", lambda client, place: client.delete(place.key), deletes=True, shows=shows)


def put_in_two_parts(body: bytes) -> Deed:
    """``body`` is more than the gateway takes into memory, and more than one part."""
    return replace(put(body), name="put in two parts", parts=2)


def complete(body: bytes) -> Deed:
    """Complete the upload that was opened for the key, the last one if there are several."""

    def perform(client: Client, place: Place) -> Answer:
        return client.complete(place.key, place.uploads[-1], body)

    return Deed("completion", perform, body=body)


def copy(source: str, body: bytes, *, parts: int = 1) -> Deed:
    """``body`` is what is at the key ``source``."""
    return Deed("copy", lambda client, place: client.copy(source, place.key), body=body, parts=parts)


def delete_two() -> Deed:
    """Both keys of the place in one request."""

    def perform(client: Client, place: Place) -> Answer:
        return client.delete_many(place.key, place.second_key)

    return Deed("delete of two", perform, deletes=True, writes=2)


def tag(value: str) -> Deed:
    return Deed("tagging", lambda client, place: client.tag(place.key, value), amends=True)


def delete_version() -> Deed:
    """The only version there is in a bucket that keeps none, for good and without a condition."""
    return Deed("delete of a version", lambda client, place: client.delete_version(place.key, "null"), deletes=True)


def put_second(body: bytes) -> Deed:
    """At the place's other key."""
    return Deed("put at the second key", lambda client, place: client.put(place.second_key, body), shows=False)


def barrier() -> Deed:
    return Deed("barrier", lambda client, place: client.barrier(place.resource), shows=False)


def upsert(note: str) -> Deed:
    """The row, whether it is there or not."""

    def perform(client: Client, place: Place) -> Answer:
        return client.table("POST", "accounts", {"id": place.number, "note": note}, Prefer=_MERGE)

    return Deed("upsert", perform)


def insert(note: str) -> Deed:
    return Deed("insert", lambda client, place: client.table("POST", "accounts", {"id": place.number, "note": note}))


def insert_two(note: str) -> Deed:
    """Two rows, of two resources, in one request."""

    def perform(client: Client, place: Place) -> Answer:
        rows = [{"id": number, "note": note} for number in (place.number, -place.number)]
        return client.table("POST", "accounts", rows)

    return Deed("insert of two", perform)


def update(note: str) -> Deed:
    return Deed("update", lambda client, place: client.table("PATCH", _filtered(place), {"note": note}))


def update_one(note: str) -> Deed:
    """An update that may have to be undone, so that it cannot be a single statement."""
    strictly = {"Prefer": "handling=strict,max-affected=1"}
    return Deed(
        "update of one", lambda client, place: client.table("PATCH", _filtered(place), {"note": note}, **strictly)
    )


def insert_once(note: str) -> Deed:
    """A row, under a key: however often it is sent, it is inserted once."""

    def perform(client: Client, place: Place) -> Answer:
        rows = {"id": place.number, "note": note}
        headers = {"Idempotency-Key": f"insert-{place.number}", "Prefer": "return=representation"}
        return client.table("POST", "accounts", rows, **headers)

    return Deed("insert under a key", perform)


def write_two_once(note: str) -> Deed:
    """A transaction under a key: the row is replaced, and another one inserted."""

    def perform(client: Client, place: Place) -> Answer:
        insert = {"method": "POST", "table": "accounts", "body": {"id": -place.number, "note": note}}
        query = f"id=eq.{place.number}"
        update = {"method": "PATCH", "table": "accounts", "query": query, "body": {"note": note}}
        return client.transaction([insert, update], **{"Idempotency-Key": f"two-{place.number}"})

    return Deed("transaction under a key", perform)


def delete_row() -> Deed:
    return Deed("delete of a row", lambda client, place: client.table("DELETE", _filtered(place)))


def by_barrier(_: bytes | None) -> tuple[Deed, ...]:
    return (barrier(),)


def by_writing(_: bytes | None) -> tuple[Deed, ...]:
    return (put(b"the new holder's"),)


def by_restoring(before: bytes | None) -> tuple[Deed, ...]:
    """In the end there is what was there at first, to the byte: its ETag must not be."""
    return barrier(), put(b"in between"), delete() if before is None else put(before)


def by_removing(_: bytes | None) -> tuple[Deed, ...]:
    return barrier(), delete()


def by_row(_: bytes | None) -> tuple[Deed, ...]:
    return (upsert("the new holder's"),)


def _filtered(place: Place) -> str:
    return f"accounts?id=eq.{place.number}"
