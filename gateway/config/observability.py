"""Sections of the configuration about what is seen of the gateway: the record, who is told of it, telemetry."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from gateway.config.section import KIBIBYTE, Section
from gateway.fencing.record import Kind
from gateway.webhooks import signing


class Audit(Section):
    """What is recorded, and for how long."""

    retention: Annotated[int, Field(ge=7)] = 400
    """Days for which the record is kept. Fences are kept for ever."""
    capture: Annotated[int, Field(ge=0, le=1024 * KIBIBYTE)] = 0
    """Bytes of a refused write's payload that are kept with its entry; 0: none."""
    redact: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """Columns whose values are never kept of a payload: ``schema.table.column``, or ``column`` of any table."""

    @field_validator("redact")
    @classmethod
    def _columns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            # What is meant by two names could be a column of a table, and would redact nothing.
            if name.count(".") not in (0, 2) or not all(name.split(".")):
                raise ValueError(f"{name!r} must be schema.table.column, or the column alone")
        return value


class Webhook(Section):
    """An address that is sent what is put on record."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    url: str
    secret: SecretStr
    """What messages to it are signed with: ``whsec_`` and the base64 of 24 to 64 random bytes."""
    former_secret: SecretStr | None = None
    """What they were signed with before. While it is set, they are signed with both, and receivers can change over."""
    kinds: tuple[Kind, ...] = (Kind.REJECTION,)
    """Which entries it is sent. With none, it is only sent the alarms that name it."""
    prefix: str = ""
    """Only entries of resources that begin so."""
    observed: bool = True
    """Whether it is sent writes that were only noted, since their rule observes, as well."""

    @field_validator("secret", "former_secret")
    @classmethod
    def _usable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            signing.key_of(value.get_secret_value())
        return value

    @field_validator("url")
    @classmethod
    def _address(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None or parts.fragment:
            raise ValueError("must be an http:// or https:// address without user or fragment")
        return value


class Alarm(Section):
    """A rate of zombies that somebody should hear of: more than so many within so many minutes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    prefix: str = ""
    """Zombies at resources that begin so."""
    more_than: Annotated[int, Field(ge=0, le=10_000)]
    """The times of so many, and one, are kept with the alarm."""
    minutes: Annotated[int, Field(ge=1, le=1440)]
    webhooks: tuple[str, ...] = ()
    """Names of webhooks; all of them if none is named."""


class Telemetry(Section):
    """Metrics, traces, and the log of requests."""

    public_metrics: bool = False
    """Whether ``/v1/metrics`` can be read without an API key."""
    access_log: bool = False
    """Whether each request is a line of the log."""
    traces: str | None = None
    """Where traces are sent: an OTLP/HTTP endpoint, such as ``http://127.0.0.1:4318``. Needs the extra ``tracing``."""
    sample: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The share of traces begun here that are sent. One begun by a caller is sent if the caller says so."""
    service: Annotated[str, Field(min_length=1)] = "fencing-gateway"
    """The name of this gateway in traces."""

    @field_validator("traces")
    @classmethod
    def _collector(cls, value: str | None) -> str | None:
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError("must be an http:// or https:// address, such as http://127.0.0.1:4318")
        return value
