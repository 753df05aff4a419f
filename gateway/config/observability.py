"""Sections of the configuration: the record, webhooks and alarms, telemetry."""

import re
from collections.abc import Collection
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator

from gateway.config.section import KIBIBYTE, Section
from gateway.fencing.record import EntryReason, Kind
from gateway.webhooks import signing


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


class Webhook(Section):
    """An address that receives entries of the record."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """Its name in alarms, metrics and the API."""
    url: str
    """The address that receives messages. It is not shown again, because it may contain a secret."""
    secret: SecretStr
    """The key that signs messages: ``whsec_`` and the base64 of 24 to 64 random bytes."""
    former_secret: SecretStr | None = None
    """The previous key. While it is set, both keys sign messages, so that receivers can switch."""
    kinds: tuple[Kind, ...] = (Kind.REJECTION,)
    """The kinds of entries that it receives. Without any, it receives only the alarms that name it."""
    prefix: str = ""
    """Only entries of resources whose name begins with this."""
    observed: bool = True
    """Whether it also receives writes that passed because their rule observes."""
    except_reasons: tuple[EntryReason, ...] = ()
    """Of entries with a reason, such as refused writes, none with one of these: ``["denied"]`` leaves out requests
    without a grant."""

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
    """An alarm: more than so many refused writes within so many minutes."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    """Its name in the record, metrics and messages."""
    prefix: str = ""
    """Only refused writes to resources whose name begins with this."""
    more_than: Annotated[int, Field(ge=0, le=10_000)]
    """The alarm keeps the times of so many refused writes, and of one more."""
    minutes: Annotated[int, Field(ge=1, le=1440)]
    """The length of the window in minutes."""
    webhooks: tuple[str, ...] = ()
    """Names of webhooks; all of them by default."""


_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_PRINTABLE = re.compile(r"[!-~]+")


class Ui(Section):
    """The pages at ``/ui/``: links from entries to other programs."""

    trace_url: str | None = None
    """The address of a trace: ``{trace_id}`` stands for its id, ``{since}`` and ``{until}`` for an hour around it."""
    log_url: str | None = None
    """The address of a request's log lines: ``{request_id}`` stands for its id, the others as in ``trace_url``."""

    @field_validator("trace_url")
    @classmethod
    def _of_trace(cls, value: str | None) -> str | None:
        return None if value is None else _link(value, "trace_id", ("since", "until"))

    @field_validator("log_url")
    @classmethod
    def _of_log(cls, value: str | None) -> str | None:
        return None if value is None else _link(value, "request_id", ("since", "until"))


def _link(template: str, needed: str, others: Collection[str]) -> str:
    """Check the template of a link. The page puts names into it, percent-encoded, so its host must be a literal."""
    parts = urlsplit(template)
    is_address = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
    if not is_address or not _PRINTABLE.fullmatch(template):
        raise ValueError("must be an http:// or https:// address without user; percent-encode spaces in it")
    found = set(_PLACEHOLDER.findall(template))
    known = ", ".join(f"{{{name}}}" for name in (needed, *others))
    if found - {needed, *others} or set("{}") & set(_PLACEHOLDER.sub("", template)):
        raise ValueError(f"only {known} can stand in braces; write other braces as %7B and %7D")
    if needed not in found:
        raise ValueError(f"must contain {{{needed}}}")
    if set("{}") & set(parts.netloc):
        raise ValueError("the host must be a literal: a placeholder belongs into the path, the query or the fragment")
    return template


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
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
                raise ValueError("must be an http:// or https:// address, such as http://127.0.0.1:4318")
        return value
