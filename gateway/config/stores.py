"""Sections of the configuration: the database, and the object store."""

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.auth.database_roles import OWN
from gateway.config.section import Misplaced, Section, origin
from gateway.errors import ResourceMalformed
from gateway.fencing.intent import LATE_AFTER, Duplicates
from gateway.fencing.ownership import Domain
from gateway.fencing.resource import check_pattern
from gateway.journal.contents import PREFIX
from gateway.journal.protocol import Mode


class RoleRule(Section):
    """A role of the database, under which the requests of some callers run. The first matching rule decides."""

    callers: tuple[str, ...] = ()
    """Names of callers; ``*`` for all of ``[[callers]]``; ``anonymous`` for requests without credentials."""
    groups: tuple[str, ...] = ()
    """Groups of callers, in addition to the names."""
    role: Annotated[str, Field(min_length=1)] | None = None
    """The role; ``none`` for the gateway's own."""
    claim: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The claim of an identity token that names the role: its key, or the keys on the way to it."""
    allowed: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The roles that the claim may name. If it lists several, the first of these holds."""

    @model_validator(mode="after")
    def _names_a_role(self) -> "RoleRule":
        if not self.callers and not self.groups:
            raise ValueError("names no caller; set callers or groups")
        if (self.role is None) == (not self.claim):
            raise ValueError("needs either a role, or a claim that names it")
        if bool(self.claim) != bool(self.allowed):
            raise ValueError("a claim needs the roles that it may name; set allowed beside claim, and only there")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """Return the roles of the database that requests may run under by this rule."""
        return tuple(name for name in (self.role, *self.allowed) if name is not None and name != OWN)


class Postgres(Section):
    """The database with the fenced tables and the fencing schema. Required, unless there are ``[[databases]]``."""

    dsn: SecretStr
    """The address of the database, as ``postgresql://user:password@host/database``. It may name several hosts."""
    schemas: Annotated[tuple[str, ...], Field(min_length=1)] = ("public",)
    """Exposed schemas. The first one is the default."""
    pool_size: Annotated[int, Field(gt=0)] = 16
    """The most sessions with the database that requests share. Reads have half as many of their own beside them."""
    statement_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that one statement may take."""
    read_timeout: Annotated[float, Field(gt=0)] = 10.0
    """Seconds that the statement of a read may take. A read without credentials has 3 at most."""
    max_rows: Annotated[int, Field(gt=0)] | None = None
    """The most rows in the answer to a read. It does not limit writes."""
    functions: tuple[Annotated[str, Field(pattern=r"^[^.]+\.[^.]+$")], ...] = ()
    """The functions that can be called at ``rpc/name``, as ``schema.name``. Their schemas must be exposed."""
    roles: tuple[RoleRule, ...] = ()
    """The roles under which requests to tables and functions run. Without any, all run with the gateway's own rights.
    With some, a caller that no rule names is denied."""
    tx_override: bool = False
    """Let callers roll back a write at its end, with ``Prefer: tx=rollback``."""
    overrides: bool = False
    """Let functions, triggers and views set ``response.status`` and ``response.headers`` of answers."""
    verbose: bool = True
    """Tell callers of the database: an OpenAPI description of its tables at the root, and details and hints in errors,
    which may quote rows and name other parts of the schema."""

    @property
    def database_roles(self) -> tuple[str, ...]:
        """Return the roles of the database that requests may run under, beside the gateway's own."""
        return tuple(dict.fromkeys(name for rule in self.roles for name in rule.named))

    @field_validator("schemas")
    @classmethod
    def _no_system_schemas(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for schema in value:
            if schema in ("fencing", "information_schema") or schema.startswith("pg_"):
                raise ValueError(f"{schema} must not be exposed; remove it")
        return value

    @model_validator(mode="after")
    def _functions_are_exposed(self) -> "Postgres":
        for name in self.functions:
            if name.partition(".")[0] not in self.schemas:
                schema = name.partition(".")[0]
                raise Misplaced(("functions",), f"the schema of {name} is not exposed; add {schema} to schemas")
        return self


class ObjectStore(Section):
    """The S3 store behind the gateway. Only the gateway may hold credentials that write to it."""

    endpoint: str
    """The address of the store: scheme, host and port."""
    region: str = "us-east-1"
    """The region that signatures name."""
    access_key_id: str
    """The public part of the gateway's key pair at the store."""
    secret_access_key: SecretStr
    """The secret part of that pair."""
    evidence_keys: tuple[SecretStr, ...] = ()
    """Keys that prove which token wrote an object. The first one signs; the secret access key is the last."""
    late_after: Annotated[float, Field(ge=1)] = LATE_AFTER.total_seconds()
    """Seconds after which a request has had its effect once the store has begun with it. Longer than the store waits
    for the rest of an interrupted body. A lost write without a condition blocks newer holders for so long."""
    sweep_unconditionally: bool = False
    """Remove tombstones also if the store ignores the condition of a delete. If such a removal gets lost, writes of
    its key wait for ``late_after``."""

    duplicates: Duplicates = Duplicates.TOLERATE
    """Whether a write passes or waits if duplicates of finished requests could match every ETag it could leave."""
    distrust: tuple[Literal["complete", "delete"], ...] = ()
    """Operations whose conditions the gateway does not trust, regardless of a probe: CompleteMultipartUpload,
    DeleteObject. A probe hardly ever sees a race that the store loses once in a thousand times."""

    @field_validator("endpoint")
    @classmethod
    def _origin_only(cls, value: str) -> str:
        return origin(value)


class Journal(Section):
    """The journal of raised fences, from which a database that was put back gets them again."""

    mode: Mode = Mode.ASYNC
    """The losses of the database that an acknowledged raise survives: async, sync or off. Without a store: off."""
    bucket: Annotated[str, Field(pattern=r"^[^/]+(/[^/].*/)?$")] | None = None
    """The bucket of [s3] that holds the journal, or ``bucket/prefix/`` for its keys below a prefix."""
    dsn: SecretStr | None = None
    """A second PostgreSQL that holds the journal, in place of a bucket."""
    retention_days: Annotated[int, Field(ge=7)] = 35
    """The age of the oldest backup that can be opened with this journal."""

    @model_validator(mode="after")
    def _one_store(self) -> "Journal":
        if self.bucket is not None and self.dsn is not None:
            raise Misplaced(("dsn",), "a journal has one store; remove dsn or bucket")
        if self.bucket is None and self.dsn is None and "mode" in self.model_fields_set and self.mode is not Mode.OFF:
            raise Misplaced(("mode",), f"mode {self.mode} needs a store; set bucket or dsn")
        return self

    @property
    def prefix(self) -> str:
        """The beginning of its keys in its bucket."""
        return (self.bucket or "").partition("/")[2] or PREFIX

    @property
    def effective_mode(self) -> Mode:
        """The mode: without a store there is none."""
        return Mode.OFF if self.bucket is None and self.dsn is None else self.mode


NAME = r"^[A-Za-z0-9_-]{1,64}$"


class DatabaseEntry(Postgres):
    """One of several databases, each with its own fences, locks and record. It has all keys of ``[postgres]``."""

    name: Annotated[str, Field(pattern=NAME)]
    """Its name in requests, commands and metrics: 1 to 64 letters, digits, _ or -. It does not change."""
    schemas: tuple[str, ...] = ("public",)
    """Exposed schemas. The first one of the default database is the default. ``[]``: the database has no tables."""
    default: bool = False
    """Whether it owns every resource, bucket and request that no rule gives to another one. Exactly one does."""
    buckets: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The buckets whose objects are fenced here. ``shared/tenant-7/`` is the keys of ``shared`` below a prefix."""
    resources: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Patterns of resources whose fences and locks are here. Rows and keys without a rule need none."""
    store: str | None = None
    """The one of ``[[stores]]`` that has its buckets."""
    journal: Journal = Journal()
    """The journal of its raised fences."""

    @field_validator("resources")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            try:
                check_pattern(pattern)
            except ResourceMalformed as error:
                raise ValueError(error.message) from error
        return value

    @property
    def domain(self) -> Domain:
        """Return what belongs to it by rule."""
        return Domain(self.name, self.schemas, self.buckets, self.resources, self.default)

    @property
    def postgres(self) -> Postgres:
        """Return it as the section of a gateway with this database alone."""
        return Postgres.model_construct(**{key: getattr(self, key) for key in Postgres.model_fields})


class StoreEntry(ObjectStore):
    """One of several object stores. It has all keys of ``[s3]``."""

    name: Annotated[str, Field(pattern=NAME)]
    """Its name, for ``store`` of ``[[databases]]``."""

    @property
    def store(self) -> ObjectStore:
        """Return it as the section of a gateway with this store alone."""
        return ObjectStore.model_construct(**{key: getattr(self, key) for key in ObjectStore.model_fields})
