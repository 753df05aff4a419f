"""The gateway of the admission tests, whose rows and objects belong to the resources ``{kind}/{name}``.

The kind is the policy of the resource, or ``watched``, for which the rules of table and bucket only observe.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import asyncpg
import httpx

from gateway.demo.embedded import EmbeddedPostgres
from gateway.fencing.sequencer import Sequencer, Signer
from gateway.fencing.token import MAX_EPOCH, MAX_VALUE, Token
from tests.doubles.s3 import S3Double, serve
from tests.objects.object_gateway import Stage
from tests.patience import patient_trips
from tests.postgres import fresh_database
from tests.running import ACCESS_KEY, API_KEY, SECRET_KEY, Events, config, running
from tests.waiting import PATIENCE

KEYS = ["k" * 32, "former".ljust(32, "-")]
SIGNER = Signer(KEYS)
ADMIN_KEY = "admin-api-key"
FORGED = (str(MAX_VALUE), f"{MAX_EPOCH}.1")

CALLERS = [
    {"name": "writer", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY, "api_key": API_KEY},
    {"name": "admin", "api_key": ADMIN_KEY, "groups": ["admins"]},
]
RULES: dict[str, Any] = {
    "resources": [{"match": f"{kind}/**", "tokens": kind} for kind in ("issued", "signed", "live")],
    "tables": [
        {"name": "public.docs", "resource": "{kind}/{name}"},
        {"name": "public.watched", "resource": "watched/{name}", "mode": "observe"},
    ],
    "objects": [
        {"match": "bucket/watched/{name}/**", "resource": "watched/{name}", "mode": "observe"},
        {"match": "bucket/{kind}/{name}/**", "resource": "{kind}/{name}"},
    ],
}
SCHEMA = """
CREATE TABLE docs (kind text, name text, note text, PRIMARY KEY (kind, name));
CREATE TABLE watched (name text PRIMARY KEY, note text);
CREATE FUNCTION annotate(kind text, name text, note text) RETURNS void LANGUAGE sql VOLATILE AS
    'UPDATE docs d SET note = $3 WHERE d.kind = $1 AND d.name = $2';
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """The credentials of a writer: a token, or a sequencer, or both."""

    token: str | None = None
    sequencer: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        named = {"Fencing-Token": self.token, "Fencing-Sequencer": self.sequencer}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def bare(self) -> str:
        """The token, wherever it stands."""
        return self.token or str(Sequencer.parse(self.sequencer or "").token)


@dataclass(frozen=True, slots=True)
class World:
    """A running gateway, the clients of its two callers, and a session of its database."""

    stage: Stage
    api: httpx.AsyncClient
    admin: httpx.AsyncClient
    database: asyncpg.Connection

    async def leased(self, resource: str, holder: str = "ann", ttl: float = 60) -> dict[str, Any]:
        """A lease of the built-in lease service."""
        answer = await self.api.post(f"/v1/leases/{resource}", json={"holder": holder, "ttl": ttl})
        assert answer.status_code in (200, 201), answer.text
        lease: dict[str, Any] = answer.json()
        return lease

    async def released(self, lease: dict[str, Any]) -> None:
        answer = await self.api.delete(f"/v1/leases/{lease['resource']}/{lease['lease']}")
        assert answer.status_code == 204, answer.text

    async def lapsed(self, lease: dict[str, Any]) -> None:
        """As if its time were over."""
        await self.database.execute(
            "UPDATE fencing.lease SET expires_at = clock_timestamp() WHERE id = $1", UUID(lease["lease"])
        )

    async def fence(self, resource: str) -> str | None:
        """The token that the fence carries."""
        row = await self.database.fetchrow("SELECT epoch, value FROM fencing.fence WHERE resource = $1", resource)
        return None if row is None else str(Token(row["epoch"], row["value"]))

    async def on_record(self, resource: str) -> list[tuple[str, str | None, bool]]:
        """Reason, token and whether it was enforced, of everything refused or noted; the oldest first."""
        rows = await self.database.fetch("SELECT * FROM fencing.rejection WHERE resource = $1 ORDER BY at", resource)
        return [
            (row["reason"], None if row["value"] is None else str(Token(row["epoch"], row["value"])), row["enforced"])
            for row in rows
        ]

    async def row(self, resource: str) -> str | None:
        """The note in the row of a resource; None where there is no row."""
        kind, _, name = resource.partition("/")
        note: str | None = await self.database.fetchval(
            "SELECT note FROM docs WHERE (kind, name) = ($1, $2)", kind, name
        )
        return note

    async def insert(self, resource: str) -> None:
        """The row of a resource, as if it had always been there."""
        kind, _, name = resource.partition("/")
        await self.database.execute("INSERT INTO docs VALUES ($1, $2, 'before') ON CONFLICT DO NOTHING", kind, name)


@asynccontextmanager
async def opened(postgres: EmbeddedPostgres, **sections: Any) -> AsyncIterator[World]:
    """A world of one's own. ``sections`` of the configuration replace those of the usual one.

    Tests count the writes on the fast path. A shared trip that takes too long, on a busy machine, takes them off it.
    """
    double, events = S3Double(buckets=["bucket"]), Events()
    async with fresh_database(postgres) as dsn, serve(double) as endpoint:
        connection = await asyncpg.connect(dsn)
        await connection.execute(SCHEMA)
        usual = {
            "postgres": {"dsn": dsn, "functions": ["public.annotate"]},
            "callers": CALLERS,
            "leases": {"signing_keys": KEYS},
        }
        with patient_trips():
            async with (
                running(config(dsn, endpoint, **{**usual, **RULES, **sections}), events) as origin,
                _client(origin, API_KEY) as api,
                _client(origin, ADMIN_KEY) as admin,
            ):
                yield World(Stage(origin, endpoint, double, events, dsn), api, admin, connection)
        await connection.close()


def _client(origin: str, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=origin, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE)


def sequencer(resource: str, token: str, mode: str = "exclusive", signer: Signer = SIGNER) -> str:
    text = signer.sign(resource, mode, Token.parse(token))
    assert text is not None
    return text
