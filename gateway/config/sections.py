"""Sections of the configuration: the server, the databases and stores, and the base of all sections.

A secret may come from a file: ``dsn_file`` stands for ``dsn``.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import SplitResult, urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

from gateway.auth.principal import OWN
from gateway.errors import ResourceMalformed
from gateway.fencing.intent import LATE_AFTER, Duplicates
from gateway.fencing.lease import LONGEST_WAIT
from gateway.fencing.ownership import Domain
from gateway.fencing.resource import check_pattern
from gateway.journal.contents import PREFIX
from gateway.journal.trust import Mode

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
FROM_FILE = "_file"
Secret: TypeAlias = Annotated[SecretStr, Field(min_length=1)]
_alone = BeforeValidator(lambda given: (given,) if isinstance(given, str | SecretStr) else given)
Secrets: TypeAlias = Annotated[tuple[Secret, ...], _alone]
"""One secret, or a list of them."""
OneOrMore: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], _alone]
"""One text, or a list of them."""


@dataclass(frozen=True)
class Limits:
    """Limits that no file sets. Only tests have others, to be quick or patient. In seconds, or bytes."""

    body_timeout: float = 30.0
    """The longest pause within a body. In all it may take as long, and one second more per 16 KiB."""
    lock_timeout: float = 10.0
    """A write waits for the fence row of its resource, or for another row."""
    idle_timeout: float = 5.0
    """Then the database ends the transaction of a gateway that was paused inside it."""
    connect_timeout: float = 5.0
    """A new session opens."""
    table_body: int = 64 * MEBIBYTE
    """The largest request to a table, and the largest answer."""
    store_timeout: float = 60.0
    """One request to the store. For a streamed body: without progress."""
    memory_threshold: int = 8 * MEBIBYTE
    """Bodies up to this are put from memory. Larger ones are staged in the store as parts, as they arrive."""
    pending_wait: float = 5.0
    """A writer waits for another write of its own holder to the same key before it settles that one."""
    sweep_interval: float = 60.0
    """Between two rounds of the sweeper; 0: never."""
    max_wait: float = LONGEST_WAIT
    """One request waits in the queue of a lock."""
    reload_timeout: float = 120.0
    """Of several workers, one checks a configuration. With many databases that are down, it waits for each."""


NO_DATABASE = "is not the address of a database; write postgresql://role:password@host:port/database"
"""The problem of a DSN that the driver cannot read. Its own words may contain the password."""


class Misplaced(ValueError):
    """A problem that concerns the key at ``place``, as seen from the section that found it."""

    def __init__(self, place: tuple[str | int, ...], problem: str) -> None:
        super().__init__(problem)
        self.place = place


class Section(BaseModel):
    """A section. It is frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def secret_keys(cls) -> tuple[str, ...]:
        """Return the keys with secrets, each of which can be in a file of its own."""
        return tuple(name for name, field in cls.model_fields.items() if _holds_secret(field.annotation))

    @model_validator(mode="before")
    @classmethod
    def _secrets_from_files(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        values = dict(given)
        for key in cls.secret_keys():
            path = values.pop(key + FROM_FILE, None)
            if path is None:
                continue
            if given.get(key) is not None:
                raise Misplaced((key + FROM_FILE,), f"{key} is given as well; remove one of them")
            secret = read_secret(key + FROM_FILE, path)
            many = "tuple" in str(cls.model_fields[key].annotation)
            values[key] = secret.splitlines() if many else secret
        return values


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(part) for part in get_args(annotation))


def read_secret(key: str, path: Any) -> str:
    """Return the secret in a file, without one newline at its end. No message repeats what the file holds."""
    if not isinstance(path, str | Path):
        raise Misplaced((key,), "must be a path in quotes")
    try:
        secret = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Misplaced((key,), f"{path} cannot be read: {error.strerror}; correct the path or its rights") from error
    except ValueError as error:
        raise Misplaced((key,), f"{path} is not text in UTF-8; write the secret into it as text") from error
    secret = secret.removesuffix("\n").removesuffix("\r")
    if not secret.strip():
        raise Misplaced((key,), f"{path} is empty; write the secret into it")
    return secret


def texts(secrets: Iterable[SecretStr]) -> list[str]:
    """Return secrets in the clear, for the code that signs with them."""
    return [one.get_secret_value() for one in secrets]


def names_host(parts: SplitResult) -> bool:
    """Return whether an address has a host that can be looked up, and no port that none can have."""
    host = parts.hostname or ""
    try:
        _ = parts.port
        host.encode("idna")
    except ValueError:  # a part of the name is empty, or longer than 63 characters
        return False
    return bool(host) and host.isprintable() and " " not in host


def origin(value: str) -> str:
    """Return an address that has only scheme, host and port. Raises ``ValueError`` for any other."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not names_host(parts):
        raise ValueError("must be an http:// or https:// address, such as https://host.example.com")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must have only scheme, host and port")
    return value.rstrip("/")


def web_address(value: str) -> str:
    """Return an address with its path. Raises ``ValueError`` unless it is http:// or https://, without credentials."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not names_host(parts) or parts.username is not None or parts.fragment:
        raise ValueError("must be an http:// or https:// address without user or fragment")
    return value


def _pattern(value: str) -> str:
    try:
        check_pattern(value)
    except ResourceMalformed as error:
        raise ValueError(f"{value}: {error.message} {error.advice or ''}".rstrip()) from error
    return value


Origin: TypeAlias = Annotated[str, AfterValidator(origin)]
WebAddress: TypeAlias = Annotated[str, AfterValidator(web_address)]
Pattern: TypeAlias = Annotated[str, Field(min_length=1), AfterValidator(_pattern)]
"""A checked pattern of resources."""
Name: TypeAlias = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Qualified: TypeAlias = Annotated[str, Field(pattern=r"^[^.]+\.[^.]+$")]
"""``schema.name``."""


def browser_address(value: str) -> str:
    """Return an address at which browsers log in. Raises ``ValueError`` unless it is https://, or on this machine."""
    host = urlsplit(web_address(value)).hostname
    if urlsplit(value).scheme != "https" and host not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError("must be an https:// address; http:// is for localhost alone")
    return value


class ClientCertificates(StrEnum):
    """The gateway's wish for certificates of clients."""

    ASK = "ask"
    """A connection may be without one."""
    DEMAND = "demand"
    """No connection is."""


class Server(Section):
    """The address that the gateway listens on, and the limits of requests."""

    listen: str = "127.0.0.1:8080"
    """The address on which the gateway listens, as ``host:port``."""
    tls_certificate: Path | None = None
    """A file with the certificate of the gateway and those between it and the root. With ``tls_key``: https."""
    tls_key: Path | None = None
    """A file with the private key of the certificate."""
    public_address: Annotated[Origin, AfterValidator(browser_address)] | None = None
    """The address by which browsers reach the gateway, or the proxy in front of it. Issuers send people back there."""
    client_authorities: Path | None = None
    """A file with the authorities that sign client certificates. Without it the gateway asks for none."""
    client_certificates: ClientCertificates = ClientCertificates.ASK
    """Whether a connection needs a client certificate: ask accepts one without, demand does not."""
    rest_v1: bool = False
    """Serve tables at ``/rest/v1/{table}`` too, for clients that append that path themselves. It hides keys that begin
    with ``v1/`` in a bucket named ``rest``."""
    max_body: Annotated[int, Field(gt=0)] = 5 * 1024 * MEBIBYTE
    """The largest object, or part of one, in a request; in bytes."""
    domains: tuple[str, ...] = ()
    """Hosts whose subdomains are buckets: ``s3.example.com`` serves ``bucket.s3.example.com``."""
    memory: Annotated[int, Field(gt=0)] = 256 * MEBIBYTE
    """Bytes of bodies and answers in memory at one time, on all planes. A request that needs more waits."""
    share: Annotated[float, Field(gt=0, le=1)] = 0.25
    """The most that one caller may have: of the memory, of the sessions with a database, of the time of strangers."""
    watch: bool = False
    """Reload the configuration when its files change, those of secrets and certificates included."""
    drain: Annotated[int, Field(ge=1, le=3600)] = 30
    """Seconds that running requests get to finish after the gateway is told to stop."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use tables from a browser, such as ``https://app.example.com``; ``*`` for all."""

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            parts = urlsplit(one)
            exact = parts.scheme in ("http", "https") and one == f"{parts.scheme}://{parts.netloc}".lower()
            if one != "*" and not (exact and names_host(parts) and parts.username is None and "*" not in one):
                raise ValueError(f"{one} must be scheme://host[:port] in lower case, or *")
        return value

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        try:
            parts = urlsplit(f"//{value}")
            named = names_host(parts) and parts.port is not None
        except ValueError:
            named = False
        if not named:
            raise ValueError("must be host:port, such as 127.0.0.1:8080")
        return value

    @model_validator(mode="after")
    def _whole_pair(self) -> "Server":
        if self.tls_key is not None and self.tls_certificate is None:
            raise Misplaced(("tls_key",), "needs tls_certificate; set it as well")
        if self.client_authorities is not None and self.tls_certificate is None:
            raise Misplaced(("client_authorities",), "needs tls_certificate, because clients show certificates in TLS")
        if self.client_certificates is ClientCertificates.DEMAND and self.client_authorities is None:
            raise Misplaced(("client_certificates",), "needs client_authorities; set it as well")
        return self

    @property
    def host(self) -> str:
        return urlsplit(f"//{self.listen}").hostname or ""

    @property
    def local_url(self) -> str:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - it is not bound
        scheme = "https" if self.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def port(self) -> int:
        return urlsplit(f"//{self.listen}").port or 0


GROUP = "group:"
"""The beginning of a group in a list of callers."""


class OfCallers(Section):
    """A rule for some callers."""

    callers: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of callers; ``*`` for all that are known; ``anonymous`` for requests without credentials; ``group:ops``
    for the callers in the group ``ops``."""

    @field_validator("callers")
    @classmethod
    def _named(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if GROUP in value:
            raise ValueError(f"{GROUP} names no group; write its name behind it")
        return value

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(name.removeprefix(GROUP) for name in self.callers if name.startswith(GROUP))


class RoleRule(OfCallers):
    """A role of the database, under which the requests of some callers run. The first matching rule decides."""

    role: Annotated[OneOrMore, Field(min_length=1)]
    """The role; ``none`` for the gateway's own. Beside ``claim`` a list: the roles that it may name. If it names
    several, the first of the list holds."""
    claim: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The claim of an identity token that names the role: its key, or the keys on the way to it."""

    @model_validator(mode="after")
    def _one_without_a_claim(self) -> "RoleRule":
        if not self.claim and len(self.role) > 1:
            raise Misplaced(("role",), "only a claim can choose one of several; set claim, or keep one role")
        return self

    @property
    def named(self) -> tuple[str, ...]:
        """Return the roles of the database that requests may run under by this rule."""
        return tuple(name for name in self.role if name != OWN)


class Postgres(Section):
    """The database with the fenced tables and the fencing schema. Required, unless there are ``[[databases]]``."""

    dsn: Secret
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
    functions: tuple[Qualified, ...] = ()
    """The functions that can be called at ``rpc/name``, as ``schema.name``. Their schemas must be exposed."""
    roles: tuple[RoleRule, ...] = ()
    """The roles under which requests to tables and functions run. Without any, all run with the gateway's own rights.
    With some, a caller that no rule names is denied."""
    verbose: bool = True
    """Describe the tables at the root (OpenAPI), and include the database's details and hints in errors. They may quote
    rows and name other parts of the schema."""

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

    endpoint: Origin
    """The address of the store: scheme, host and port."""
    region: str = "us-east-1"
    """The region that signatures name."""
    access_key_id: str
    """The public part of the gateway's key pair at the store."""
    secret_access_key: Annotated[tuple[Secret, ...], _alone, Field(min_length=1)]
    """The secret part of that pair, or a list of it and earlier ones. Keys derived from it prove which token wrote an
    object: the first signs, all prove. After a change, the former secret proves older objects."""
    late_after: Annotated[float, Field(ge=1)] = LATE_AFTER.total_seconds()
    """Seconds after which a request has had its effect once the store has begun with it. Longer than the store waits
    for the rest of an interrupted body. A lost write without a condition blocks newer holders for so long."""
    duplicates: Duplicates = Duplicates.TOLERATE
    """Whether a write passes or waits if duplicates of finished requests could match every ETag it could leave."""
    distrust: tuple[Literal["complete", "delete"], ...] = ()
    """Operations whose conditions the gateway does not trust, regardless of a probe: CompleteMultipartUpload,
    DeleteObject. A probe hardly ever sees a race that the store loses once in a thousand times."""


class Journal(Section):
    """The journal of raised fences, from which a database that was put back gets them again."""

    mode: Mode = Mode.ASYNC
    """The losses of the database that an acknowledged raise survives: async, sync or off. Without a store: off."""
    bucket: Annotated[str, Field(pattern=r"^[^/]+(/[^/].*/)?$")] | None = None
    """The bucket of [s3] that holds the journal, or ``bucket/prefix/`` for its keys below a prefix."""
    dsn: Secret | None = None
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


class DatabaseEntry(Postgres):
    """One of several databases, each with its own fences, locks and record. It has all keys of ``[postgres]``.

    The first one owns every resource, bucket and request that no rule gives to another one.
    """

    name: Name
    """Its name in requests, commands and metrics: 1 to 64 letters, digits, _ or -. It does not change."""
    schemas: tuple[str, ...] = ("public",)
    """Exposed schemas. The first one of the first database is the default. ``[]``: the database has no tables."""
    buckets: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The buckets whose objects are fenced here. ``shared/tenant-7/`` is the keys of ``shared`` below a prefix."""
    resources: tuple[Pattern, ...] = ()
    """Patterns of resources whose fences and locks are here. Rows and keys without a rule need none."""
    store: str | None = None
    """The one of ``[[stores]]`` that has its buckets."""
    journal: Journal = Journal()
    """The journal of its raised fences."""

    def domain(self, *, default: bool) -> Domain:
        return Domain(self.name, self.schemas, self.buckets, self.resources, default)


class StoreEntry(ObjectStore):
    """One of several object stores. It has all keys of ``[s3]``."""

    name: Name
    """Its name, for ``store`` of ``[[databases]]``."""
