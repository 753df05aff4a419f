"""Sections of the configuration: which tokens are taken, who issues them, and what rows and keys they are about."""

from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import Section, is_sendable, origin
from gateway.errors import ConfigurationError, ResourceMalformed
from gateway.fencing.policy import MAX_JUMP, TokenPolicy, Unreachable
from gateway.fencing.resource import Template, check_pattern
from gateway.fencing.rules import Equal, Mode
from gateway.fencing.token import MAX_VALUE

MaxJump = Annotated[int, Field(ge=1, le=MAX_VALUE)]


class Fencing(Section):
    """What holds for tables, objects and resources without a rule of their own."""

    mode: Mode = Mode.ENFORCE
    equal: Equal = Equal.ACCEPT
    tokens: TokenPolicy = TokenPolicy.ANY
    """Which tokens are taken: any, or only those the lease service issued, or signed, or whose lease still lasts."""
    max_jump: MaxJump = MAX_JUMP
    """How far a token may be ahead of its fence where any is taken: what is farther ahead was never issued."""


class Leases(Section):
    """The built-in lock service."""

    max_ttl: Annotated[float, Field(ge=0.1, le=31_622_400)] = 3600.0
    """Seconds, at most a year; the longest time a lease may last without being renewed."""
    max_wait: Annotated[float, Field(ge=0)] = 60.0
    """Seconds; the longest time one request may wait in a queue."""
    signing_keys: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    """Secrets that sequencers are signed with: the first signs, all verify. The same at all gateways."""
    issuer: str | None = None
    """The origin of another gateway, whose lease service issues the tokens, and this one's none; None: this one's."""
    issuer_api_key: SecretStr | None = None
    """What this gateway proves itself with there."""

    @field_validator("issuer")
    @classmethod
    def _origin_only(cls, value: str | None) -> str | None:
        return None if value is None else origin(value)

    @field_validator("issuer_api_key")
    @classmethod
    def _sendable(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and not (value.get_secret_value() and is_sendable(value.get_secret_value())):
            raise ValueError("must be printable ASCII")
        return value

    @model_validator(mode="after")
    def _both(self) -> "Leases":
        if (self.issuer is None) != (self.issuer_api_key is None):
            raise ValueError("issuer and issuer_api_key belong together")
        return self


class ResourceRule(Section):
    """Which tokens resources take. What is left out is as in ``[fencing]``."""

    match: Annotated[str, Field(min_length=1)]
    """A resource; a segment ``*`` is any one segment, a last ``**`` all the rest. The first rule that matches holds."""
    tokens: TokenPolicy | None = None
    max_jump: MaxJump | None = None
    unreachable: Unreachable | None = None
    """What holds while ``leases.issuer`` cannot be asked: nothing is written, or the order of tokens alone decides."""
    lock_delay: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Seconds for which a lock stays closed after its holder was lost, for writers that cannot be fenced."""

    @field_validator("match")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            check_pattern(value)
        except ResourceMalformed as error:
            raise ValueError(error.message) from error
        return value


class _Rule(Section):
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
