"""Sections of the configuration: the database, and the object store."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import MEBIBYTE, Section, origin
from gateway.fencing.intent import Duplicates


class Postgres(Section):
    """The database of the fenced tables, and home of the fencing schema."""

    dsn: SecretStr
    schemas: Annotated[tuple[str, ...], Field(min_length=1)] = ("public",)
    """Exposed schemas; the first one is the default."""
    pool_size: Annotated[int, Field(gt=0)] = 16
    statement_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds one statement may take."""
    lock_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds a write waits for the fence row of its resource."""
    idle_timeout: Annotated[float, Field(gt=0)] = 5.0
    """Seconds after which the database ends the transaction of a gateway that was paused inside it."""
    connect_timeout: Annotated[float, Field(gt=0)] = 5.0
    listen: bool = True
    """Keep a session that hears of changes of the tables. Not through a pooler that shares sessions: LISTEN is lost."""
    idempotency_retention: Annotated[float, Field(ge=1)] = 24 * 3600.0
    """Seconds for which the answer to a write is kept under its Idempotency-Key, by the database's clock."""
    max_body: Annotated[int, Field(gt=0)] = 64 * MEBIBYTE
    """Largest request to a table in bytes. It is held in memory until its statement has run."""
    max_rows: Annotated[int, Field(gt=0)] | None = None
    """The most rows one answer to a read has. Writes are not limited by it."""
    functions: tuple[Annotated[str, Field(pattern=r"^[^.]+\.[^.]+$")], ...] = ()
    """``schema.name`` of the functions that can be called at ``rpc/name``; their schemas must be exposed."""
    tx_override: bool = False
    """Let callers have a write rolled back in the end, with ``Prefer: tx=rollback``."""
    overrides: bool = False
    """Let functions, triggers, views set status and headers of answers: ``response.status``, ``response.headers``."""
    verbose_errors: bool = True
    """Repeat the database's details and hints, which may quote rows and name other parts of the schema, in errors."""
    openapi: bool = True
    """Describe what is served at the root, as OpenAPI."""

    @field_validator("schemas")
    @classmethod
    def _no_system_schemas(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for schema in value:
            if schema in ("fencing", "information_schema") or schema.startswith("pg_"):
                raise ValueError(f"{schema} must not be exposed")
        return value

    @model_validator(mode="after")
    def _functions_are_exposed(self) -> "Postgres":
        for name in self.functions:
            if name.partition(".")[0] not in self.schemas:
                raise ValueError(f"functions: the schema of {name} is not exposed")
        return self


class ObjectStore(Section):
    """The S3 store behind the gateway. Nobody but the gateway may hold credentials that write to it."""

    endpoint: str
    region: str = "us-east-1"
    access_key_id: str
    secret_access_key: SecretStr
    timeout: Annotated[float, Field(gt=0)] = 60.0
    """Seconds one request to the store may take; one whose body streams: seconds without movement."""
    memory_threshold: Annotated[int, Field(ge=0)] = 8 * MEBIBYTE
    """Bodies up to so many bytes are put from memory; larger ones are staged in the store as parts, as they arrive."""
    pending_wait: Annotated[float, Field(ge=0)] = 5.0
    """Seconds a writer waits for another write of its own holder on the same key before it settles that one."""
    sweep_interval: Annotated[float, Field(ge=0)] = 60.0
    """Seconds between two rounds of clearing away tombstones, uploads and intents that were left behind; 0: never."""

    duplicates: Duplicates = Duplicates.TOLERATE
    """Whether a write passes or waits if finished requests, arriving again, could match every ETag it could leave."""
    distrust: tuple[Literal["complete", "delete"], ...] = ()
    """Conditions of the store that are not to be relied on, whatever a probe sees: those of CompleteMultipartUpload, of
    DeleteObject. A race that a store loses once in a thousand times is hardly ever seen by a probe."""

    @field_validator("endpoint")
    @classmethod
    def _origin_only(cls, value: str) -> str:
        return origin(value)
