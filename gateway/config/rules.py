"""Sections of the configuration: accepted tokens, rules of tables, keys and resources, the record, and telemetry."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from gateway.config.explanations import nearest
from gateway.config.sections import KIBIBYTE, Name, Origin, Pattern, Qualified, Secrets, Section, WebAddress, names_host
from gateway.errors import ConfigurationError
from gateway.fencing.decision import Cascades, Enforcement, Equal
from gateway.fencing.lease import LONGEST, SHORTEST
from gateway.fencing.record import EntryReason, Kind
from gateway.fencing.resource import Template
from gateway.fencing.token import MAX_VALUE
from gateway.fencing.token_policy import MAX_JUMP, TokenPolicy, Unreachable
from gateway.text import is_sendable
from gateway.webhooks import messages


class Fencing(Section):
    """The defaults of tables and objects without a rule of their own."""

    mode: Enforcement = Enforcement.ENFORCE
    """Whether refused writes are refused (enforce), or pass and are recorded (observe)."""
    equal: Equal = Equal.ACCEPT
    """Whether a token may write again: accept lets it, strict lets each token write once."""
    cascades: Cascades = Cascades.REFUSE
    """The fate of a write to a table that reaches rows of other resources, by foreign keys, triggers or rules."""


class Leases(Section):
    """The built-in lock service."""

    max_ttl: Annotated[float, Field(ge=SHORTEST, le=LONGEST)] = 3600.0
    """Seconds, at most a year: the longest lease without renewal."""
    signing_keys: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    """Secrets that sign sequencers. The first one signs, all verify. All gateways need the same ones."""
    issuer: Origin | None = None
    """The origin of another gateway, whose lease service issues the tokens instead of this one's; None for this one."""
    issuer_api_key: SecretStr | None = None
    """The API key of this gateway there."""

    @field_validator("issuer_api_key")
    @classmethod
    def _sendable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not (value.get_secret_value() and is_sendable(value.get_secret_value())):
            raise ValueError("must be printable ASCII")
        return value

    @model_validator(mode="after")
    def _both(self) -> "Leases":
        if (self.issuer is None) != (self.issuer_api_key is None):
            raise ValueError("issuer and issuer_api_key belong together: set both, or neither")
        return self


class ResourceRule(Section):
    """The tokens that resources accept. The first rule that matches holds, and ``**`` matches all."""

    match: Pattern
    """A resource. A segment ``*`` is any one segment, a last ``**`` all remaining ones."""
    tokens: TokenPolicy = TokenPolicy.ANY
    """The accepted tokens: any, or only those that the lease service issued, or signed, or whose lease is running."""
    max_jump: Annotated[int, Field(ge=1, le=MAX_VALUE)] = MAX_JUMP
    """The farthest that a token may be ahead of its fence if any token is accepted. No issuer skips that many."""
    unreachable: Unreachable = Unreachable.REFUSE
    """The policy while ``leases.issuer`` is unreachable: refuse all writes, or let the order of tokens decide."""
    lock_delay: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Seconds for which a lock stays closed after its holder was lost, because of writers that cannot be fenced."""


def _template(value: str) -> str:
    try:
        Template.parse(value)
    except ConfigurationError as error:
        raise ValueError(error.message) from error
    return value


class _Rule(Section):
    mode: Enforcement | None = None
    """As in ``[fencing]``, for writes under this rule."""
    equal: Equal | None = None
    """As in ``[fencing]``, for writes under this rule."""
    resource: Annotated[str, AfterValidator(_template)] | None = None
    """The template of the resource's name, with columns of the table or segments of the key in braces."""


class TableRule(_Rule):
    """The mapping of a table's rows to resources. ``resource`` defaults to ``{name}/{primary key}``."""

    name: Qualified
    """``schema.table``."""
    version: Annotated[str, Field(min_length=1)] | None = None
    """The column that changes with every change of a row and serves as its ETag. The default is a digest of the row."""
    cascades: Cascades | None = None
    """As in ``[fencing]``, for writes of this table."""


class ObjectRule(_Rule):
    """The mapping of keys to resources. ``resource`` defaults to ``s3/{bucket}/{key}``."""

    match: Annotated[str, Field(min_length=3)]
    """A ``bucket/key`` pattern: ``{name}`` and ``*`` are one segment, a last ``**`` is all remaining ones."""


class Audit(Section):
    """The record: its retention, and the payloads it keeps."""

    retention: Annotated[int, Field(ge=7)] = 400
    """Days for which the record is kept. Fences are kept forever."""
    capture: Annotated[int, Field(ge=0, le=1024 * KIBIBYTE)] = 0
    """Bytes of a refused write's payload that are kept with its entry; 0 for none."""
    redact: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Columns whose values are removed from kept payloads: ``schema.table.column``, or ``column`` of any table."""

    @field_validator("redact")
    @classmethod
    def _columns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            # A name of two parts could mean the column of a table, and would redact nothing.
            if name.count(".") not in (0, 2) or not all(name.split(".")):
                raise ValueError(f"{name!r} must be schema.table.column, or the column alone")
        return value


_NOT, _OBSERVED = "not ", "observed"
_WANTED = (*(kind.value for kind in Kind), *(_NOT + left_out for left_out in (_OBSERVED, *EntryReason)))


class Webhook(Section):
    """An address that receives entries of the record."""

    name: Name
    """Its name in alarms, metrics and the API."""
    url: WebAddress
    """The address that receives messages. It is not shown again, because it may contain a secret."""
    secret: Annotated[Secrets, Field(min_length=1)]
    """The key that signs messages: ``whsec_`` and the base64 of 24 to 64 random bytes. All of a list sign, so that
    receivers can switch."""
    kinds: tuple[str, ...] = (Kind.REJECTION.value,)
    """The kinds of entries that it receives. Without any, it receives only the alarms that name it. ``not denied``
    leaves out entries with this reason, and ``not observed`` writes that passed because their rule observes."""
    prefix: str = ""
    """Only entries of resources whose name begins with this."""

    @field_validator("kinds")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for one in value:
            if one not in _WANTED:
                raise ValueError(
                    f"there is no kind {one}.{nearest(one, _WANTED) or ' See docs/record.md for the kinds.'}"
                )
        if value and all(one.startswith(_NOT) for one in value):
            raise ValueError("names only what it leaves out; add a kind, such as rejection")
        return value

    @property
    def entries(self) -> tuple[Kind, ...]:
        return tuple(Kind(one) for one in self.kinds if not one.startswith(_NOT))

    @property
    def observed(self) -> bool:
        """Return whether it also receives writes that passed because their rule observes."""
        return f"{_NOT}{_OBSERVED}" not in self.kinds

    @property
    def except_reasons(self) -> tuple[EntryReason, ...]:
        return tuple(reason for reason in EntryReason if _NOT + reason in self.kinds)

    @field_validator("secret")
    @classmethod
    def _usable(cls, value: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
        for one in value:
            messages.key_of(one.get_secret_value())
        return value


class Alarm(Section):
    """An alarm: more than so many refused writes within so many minutes."""

    name: Name
    """Its name in the record, metrics and messages."""
    prefix: str = ""
    """Only refused writes to resources whose name begins with this."""
    more_than: Annotated[int, Field(ge=0, le=10_000)]
    """The alarm keeps the times of so many refused writes, and of one more."""
    minutes: Annotated[int, Field(ge=1, le=1440)]
    """The length of the window in minutes."""
    webhooks: tuple[str, ...] = ()
    """Names of webhooks; all of them by default."""


class Telemetry(Section):
    """Metrics, traces, and the log of requests."""

    public_metrics: bool = False
    """Whether ``/v1/metrics`` is for all callers. Else it is for programs on this host, and callers with ``audit``."""
    access_log: bool = False
    """Whether each request is a line of the log."""
    traces: str | None = None
    """The OTLP/HTTP endpoint for traces, such as ``http://127.0.0.1:4318``. Needs the extra ``tracing``."""

    @field_validator("traces")
    @classmethod
    def _collector(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not names_host(parts) or parts.query or parts.fragment:
                raise ValueError("must be an http:// or https:// address, such as http://127.0.0.1:4318")
        return value
