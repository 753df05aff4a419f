"""The configuration: one frozen value from a TOML file and the environment. The only reader of the environment.

Every key can come from the environment as well: ``GATEWAY_POSTGRES__DSN`` is ``dsn`` of ``[postgres]``, and lists are
JSON (``GATEWAY_CALLERS='[{"name": "worker", …}]'``). The environment wins over the file. Unknown keys are errors.
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, TomlConfigSettingsSource
from pydantic_settings.exceptions import SettingsError

from gateway.errors import ConfigurationError
from gateway.fencing.resource import Template
from gateway.fencing.rules import Equal, Mode

MEBIBYTE = 1024 * 1024


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Server(_Section):
    """Where the gateway listens, and what it takes in."""

    listen: str = "127.0.0.1:8080"
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    rest_v1: bool = False
    """Serve tables at ``/rest/v1/{table}`` too, for clients that append that path by themselves."""
    max_body: Annotated[int, Field(gt=0)] = 5 * 1024 * MEBIBYTE
    """Largest object, or part of one, that is taken in one request; in bytes."""
    domains: tuple[str, ...] = ()
    """Hosts under which a bucket may be a label of its own: ``s3.example.com`` serves ``bucket.s3.example.com``."""
    memory: Annotated[int, Field(gt=0)] = 256 * MEBIBYTE
    """Bytes of objects that may be in memory at one time; whoever wants more waits its turn."""
    body_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds a client may send nothing of an object's body, and that it may take beyond one for each KiB."""

    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use the tables from a browser, such as ``https://app.example.com``; ``*`` for all."""

    @field_validator("cors_origins")
    @classmethod
    def _origins(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for origin in value:
            parts = urlsplit(origin)
            exact = parts.scheme in ("http", "https") and origin == f"{parts.scheme}://{parts.netloc}".lower()
            if origin != "*" and not (exact and parts.hostname and parts.username is None and "*" not in origin):
                raise ValueError(f"{origin} must be scheme://host[:port] in lower case, or *")
        return value

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, value: str) -> str:
        try:
            parts = urlsplit(f"//{value}")
            named = bool(parts.hostname) and parts.port is not None
        except ValueError:
            named = False
        if not named:
            raise ValueError("must be host:port, such as 127.0.0.1:8080")
        return value

    @property
    def host(self) -> str:
        return urlsplit(f"//{self.listen}").hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(f"//{self.listen}").port or 0


class Postgres(_Section):
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


class ObjectStore(_Section):
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

    distrust: tuple[Literal["complete", "delete"], ...] = ()
    """Conditions of the store that are not to be relied on, whatever a probe sees: those of CompleteMultipartUpload, of
    DeleteObject. A race that a store loses once in a thousand times is hardly ever seen by a probe."""

    @field_validator("endpoint")
    @classmethod
    def _origin_only(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must be an http:// or https:// address")
        if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
            raise ValueError("must be nothing but scheme, host and port")
        return value.rstrip("/")


class CallerKeys(_Section):
    """Who may write, and what it proves itself with."""

    name: Annotated[str, Field(min_length=1)]
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    api_key: SecretStr | None = None
    admin: bool = False
    """May administer buckets: create and delete them, change their policies and settings."""

    @model_validator(mode="after")
    def _provable(self) -> "CallerKeys":
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together")
        if self.access_key_id is None and self.api_key is None:
            raise ValueError("needs an api_key, or an access_key_id with its secret_access_key")
        return self


class Auth(_Section):
    anonymous: bool = False
    """Let anyone use tables and the fencing API. For trying out only; S3 requests are always signed."""


class Fencing(_Section):
    """What holds for tables and objects without a rule of their own."""

    mode: Mode = Mode.ENFORCE
    equal: Equal = Equal.ACCEPT


class _Rule(_Section):
    mode: Mode | None = None
    equal: Equal | None = None
    resource: str | None = None

    @field_validator("resource")
    @classmethod
    def _readable(cls, value: str | None) -> str | None:
        if value is not None:
            try:
                Template.parse(value)
            except ConfigurationError as error:
                raise ValueError(error.message) from error
        return value


class TableRule(_Rule):
    """How rows of one table map to resources. ``resource`` defaults to ``{name}/{primary key}``."""

    name: Annotated[str, Field(pattern=r"^[^.]+\.[^.]+$")]
    """``schema.table``."""
    version: Annotated[str, Field(min_length=1)] | None = None
    """The column that changes with every change of a row: its ETag. Without one, a digest of the row is."""
    unfiltered: bool = False
    """Let updates and deletes do without a filter. Only where ``resource`` has no columns: it is the whole table."""

    @model_validator(mode="after")
    def _whole_table(self) -> "TableRule":
        if self.unfiltered and (self.resource is None or Template.parse(self.resource).fields):
            raise ValueError(f"{self.name}: unfiltered needs a resource without columns, such as {self.name!r}")
        return self


class ObjectRule(_Rule):
    """How keys map to resources. ``resource`` defaults to ``s3/{bucket}/{key}``."""

    match: Annotated[str, Field(min_length=3)]
    """``bucket/key`` pattern: ``{name}`` is one segment, ``*`` is any one segment, a last ``**`` is all the rest."""


class Config(BaseSettings):
    """Everything the operator decides. Build it with ``load``; tests may build it from keyword arguments."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", env_prefix="GATEWAY_", env_nested_delimiter="__", hide_input_in_errors=True
    )

    server: Server = Server()
    postgres: Postgres
    s3: ObjectStore | None = None
    auth: Auth = Auth()
    fencing: Fencing = Fencing()
    callers: tuple[CallerKeys, ...] = ()
    tables: tuple[TableRule, ...] = ()
    objects: tuple[ObjectRule, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Config":
        for section, names in (
            ("callers", [caller.name for caller in self.callers]),
            ("callers", [caller.access_key_id for caller in self.callers if caller.access_key_id]),
            ("tables", [rule.name for rule in self.tables]),
            ("objects", [rule.match for rule in self.objects]),
        ):
            for name in names:
                if names.count(name) > 1:
                    raise ValueError(f"[[{section}]]: {name} stands there twice")
        return self


def load(path: Path | None) -> Config:
    """Read the configuration. ``path`` may be None: then all of it comes from the environment.

    Raises ``ConfigurationError`` naming the file and each offending key.
    """
    source = str(path) if path is not None else "the environment"

    class FromFile(Config):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            if path is None:
                return (env_settings,)
            return env_settings, TomlConfigSettingsSource(settings_cls, path)

    if path is not None and not path.is_file():
        raise ConfigurationError(f"{path}: there is no such file")
    try:
        return FromFile()
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{source}: not TOML: {error}") from error
    except SettingsError as error:
        raise ConfigurationError(f"{source}: {error}") from error
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {_problems(error)}") from error


class _OwnKey(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GATEWAY_", hide_input_in_errors=True)

    api_key: SecretStr = SecretStr("")


def api_key(path: Path | None) -> SecretStr:
    """The API key of a command that calls a gateway: what the file holds, or else ``GATEWAY_API_KEY``.

    Never an argument of the command: every user of a machine can see those. Raises ``ConfigurationError``.
    """
    if path is None:
        key, source = _OwnKey().api_key.get_secret_value(), "GATEWAY_API_KEY"
    else:
        source = str(path)
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: the API key cannot be read from it", advice="") from error
    if not key or not key.isascii() or not key.isprintable():
        raise ConfigurationError(
            f"{source}: there is no API key", advice="Set GATEWAY_API_KEY, or name a file with --api-key-file."
        )
    return SecretStr(key)


def _problems(error: ValidationError) -> str:
    """Each offending key with what is wrong with it; never the value, which may be a secret."""
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        key = ".".join(str(part) for part in problem["loc"]) or "configuration"
        text = "unknown key" if problem["type"] == "extra_forbidden" else problem["msg"].removeprefix("Value error, ")
        lines.append(f"{key}: {text}")
    return "; ".join(lines)
