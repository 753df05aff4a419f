"""Sections of the configuration: accepted tokens, their issuer, and the rules of tables, keys and resources."""

from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import Misplaced, Section, origin
from gateway.errors import ConfigurationError, ResourceMalformed
from gateway.fencing.decision import Cascades, Enforcement, Equal
from gateway.fencing.policy import MAX_JUMP, TokenPolicy, Unreachable
from gateway.fencing.resource import Template, check_pattern
from gateway.fencing.token import MAX_VALUE
from gateway.text import is_sendable


class Fencing(Section):
    """The defaults of tables, objects and resources without a rule of their own."""

    mode: Enforcement = Enforcement.ENFORCE
    """Whether refused writes are refused (enforce), or pass and are recorded (observe)."""
    equal: Equal = Equal.ACCEPT
    """Whether a token may write again: accept lets it, strict lets each token write once."""
    tokens: TokenPolicy = TokenPolicy.ANY
    """The accepted tokens: any, or only those that the lease service issued, or signed, or whose lease is running."""
    cascades: Cascades = Cascades.REFUSE
    """The fate of a write to a table that reaches rows of other resources, by foreign keys, triggers or rules."""


class Leases(Section):
    """The built-in lock service."""

    max_ttl: Annotated[float, Field(ge=0.1, le=31_622_400)] = 3600.0
    """Seconds, at most a year: the longest lease without renewal."""
    signing_keys: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    """Secrets that sign sequencers. The first one signs, all verify. All gateways need the same ones."""
    issuer: str | None = None
    """The origin of another gateway, whose lease service issues the tokens instead of this one's; None for this one."""
    issuer_api_key: SecretStr | None = None
    """The API key of this gateway there."""

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
            raise ValueError("issuer and issuer_api_key belong together: set both, or neither")
        return self


class ResourceRule(Section):
    """The tokens that resources accept. ``[fencing]`` has the defaults."""

    match: Annotated[str, Field(min_length=1)]
    """A resource. A segment ``*`` is any one segment, a last ``**`` all remaining ones. The first match holds."""
    tokens: TokenPolicy | None = None
    """As in ``[fencing]``, for these resources."""
    max_jump: Annotated[int, Field(ge=1, le=MAX_VALUE)] = MAX_JUMP
    """The farthest that a token may be ahead of its fence if any token is accepted. No issuer skips that many."""
    unreachable: Unreachable | None = None
    """The policy while ``leases.issuer`` is unreachable: refuse all writes, or let the order of tokens decide."""
    lock_delay: Annotated[float, Field(ge=0, le=3600)] | None = None
    """Seconds for which a lock stays closed after its holder was lost, because of writers that cannot be fenced."""

    @field_validator("match")
    @classmethod
    def _pattern(cls, value: str) -> str:
        try:
            check_pattern(value)
        except ResourceMalformed as error:
            raise ValueError(error.message) from error
        return value


class _Rule(Section):
    mode: Enforcement | None = None
    """As in ``[fencing]``, for writes under this rule."""
    equal: Equal | None = None
    """As in ``[fencing]``, for writes under this rule."""
    resource: str | None = None
    """The template of the resource's name, with columns of the table or segments of the key in braces."""

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
    """The mapping of a table's rows to resources. ``resource`` defaults to ``{name}/{primary key}``."""

    name: Annotated[str, Field(pattern=r"^[^.]+\.[^.]+$")]
    """``schema.table``."""
    version: Annotated[str, Field(min_length=1)] | None = None
    """The column that changes with every change of a row and serves as its ETag. The default is a digest of the row."""
    cascades: Cascades | None = None
    """As in ``[fencing]``, for writes of this table."""
    unfiltered: bool = False
    """Allow updates and deletes without a filter. ``resource`` must have no columns, so it is the whole table."""

    @model_validator(mode="after")
    def _whole_table(self) -> "TableRule":
        if self.unfiltered and (self.resource is None or Template.parse(self.resource).fields):
            raise Misplaced(("unfiltered",), f"needs a resource without columns, such as {self.name!r}; set resource")
        return self


class ObjectRule(_Rule):
    """The mapping of keys to resources. ``resource`` defaults to ``s3/{bucket}/{key}``."""

    match: Annotated[str, Field(min_length=3)]
    """A ``bucket/key`` pattern: ``{name}`` and ``*`` are one segment, a last ``**`` is all remaining ones."""
