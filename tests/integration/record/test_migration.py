"""What was on record before there was one record is in it, in the order in which it happened."""

import asyncio
import json
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest
from alembic import command

from gateway.db import migrations
from gateway.db.database import Database
from gateway.demo.embedded import EmbeddedPostgres
from tests.integration.record.sealed import flaws, lines
from tests.integration.test_doctor import execute

BEFORE = """
INSERT INTO fencing.rejection (resource, id, at, reason, enforced, epoch, value, holder, caller, method, target, client,
    request_id, payload_size, payload_sha256, fence_epoch, fence_value, fence_holder, fence_caller, fence_raised_at)
VALUES ('r/1', '00000000-0000-0000-0000-000000000001', '2026-01-01 10:00:02Z', 'token-stale', true, 0, 33, 'ann',
    'writer', 'PATCH', '/x', '127.0.0.1', 'request', 5, 'ab', 1, 34, 'bob', 'other', '2026-01-01 10:00:00Z');
INSERT INTO fencing.event (at, kind, resource, caller, holder, epoch, value, details) VALUES
    ('2026-01-01 10:00:03Z', 'expired', 'job/1', 'writer', 'ann', 0, 7, '{"mode": "exclusive"}'),
    ('2026-01-01 10:00:04Z', 'epoch', NULL, NULL, NULL, 1, 0, '{}'),
    ('2026-01-01 10:00:05Z', 'broken', 'job/2', 'operator', 'bob', 0, 8, '{"reason": "it hangs"}');
INSERT INTO fencing.administration (id, at, caller, operation, bucket, target, client, request_id)
VALUES ('00000000-0000-0000-0000-000000000002', '2026-01-01 10:00:01Z', 'admin', 'PutBucketAcl', 'reports',
    'PUT /reports?acl', '127.0.0.1', 'request');
"""


@pytest.fixture
def older(postgres_server: EmbeddedPostgres) -> Iterator[str]:
    """A database of the revision before."""
    name = f"older_{uuid4().hex}"
    asyncio.run(execute(postgres_server.dsn(), f"CREATE DATABASE {name}"))
    command.upgrade(migrations._alembic(postgres_server.dsn(name)), "0008")
    yield postgres_server.dsn(name)
    asyncio.run(execute(postgres_server.dsn(), f"DROP DATABASE {name} WITH (FORCE)"))


def test_it_has_all_moved(older: str) -> None:
    asyncio.run(execute(older, BEFORE))
    migrations.upgrade(older)
    asyncio.run(moved(older))


async def moved(dsn: str) -> None:
    database = Database(dsn, pool_size=1)
    try:
        exported = await lines(database)
        assert flaws(exported) == [], "it is sealed already"
        found = [json.loads(line) for line in exported]
        assert [(one["kind"], one["at"][17:19], one["resource"], one["caller"]) for one in found] == [
            ("administration", "01", None, "admin"),
            ("rejection", "02", "r/1", "writer"),
            ("lease-expired", "03", "job/1", "writer"),
            ("epoch", "04", None, None),
            ("lease-broken", "05", "job/2", "operator"),
        ]
        assert (found[1]["token"], found[1]["fence"], found[1]["fence_raised_at"]) == (
            "33",
            "1.34",
            "2026-01-01T10:00:00.000000Z",
        )
        (rejection,) = await database.fetch("SELECT * FROM fencing.rejection")
        assert rejection["id"] == UUID(int=1)
        assert (rejection["payload_sha256"], rejection["fence_holder"], rejection["enforced"]) == ("ab", "bob", True)
        (administration,) = await database.fetch("SELECT * FROM fencing.administration")
        assert tuple(administration)[2:6] == ("admin", "PutBucketAcl", "reports", "PUT /reports?acl")
        events = await database.fetch("SELECT kind, details ->> 'reason' AS reason FROM fencing.event ORDER BY at")
        assert [tuple(row) for row in events] == [
            ("lease-expired", None),
            ("epoch", None),
            ("lease-broken", "it hangs"),
        ]
    finally:
        await database.close()
