"""Sections of the configuration: the callers with their keys, and the grants."""

from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.auth.grants import AT_PLACES, OF_ALL, OF_RESOURCES, Action, PlaceKind
from gateway.auth.principal import check_name
from gateway.config.sections import (
    GROUP,
    Misplaced,
    OfCallers,
    OneOrMore,
    Pattern,
    Secrets,
    Section,
    browser_address,
    texts,
    web_address,
)
from gateway.fencing.record import ANONYMOUS, PROCESS, ROLE, SWEEPER, is_own_name

_SHORTEST_SHARED = 32
"""Bytes, as RFC 7518 wants for HS256."""


class KeyPair(NamedTuple):
    """A pair of keys that signs S3 requests. Requests name the first one, and the second one signs."""

    access_key_id: str
    secret_access_key: str


class CallerKeys(Section):
    """A caller and its keys. It may have several at a time, so that they can be changed one after the other."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    """The name in grants, locks and the record. Names of issuers' callers and of the gateway itself are reserved."""
    api_key: Secrets = ()
    """The key for tables and the fencing API, sent as ``Authorization: Bearer``; or a list, to change keys without a
    pause. It has 8 characters or more."""
    access_key_id: OneOrMore = ()
    """The public part of the key pair that signs S3 requests; or a list, to change pairs without a pause."""
    secret_access_key: Secrets = ()
    """The secret part of that pair; or a list, one for each ``access_key_id``, in their order. It has 8 characters or
    more. Fenced credentials are derived from the first pair."""
    certificates: tuple[str, ...] = ()
    """Names in client certificates that prove this caller: ``URI:…``, ``DNS:…`` or ``CN:…``."""
    groups: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = ()
    """Groups that it belongs to. Grants may name them."""

    @field_validator("certificates")
    @classmethod
    def _exact_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(check_name, value))

    @field_validator("name")
    @classmethod
    def _its_own(cls, value: str) -> str:
        """Check a name. Locks, idempotency keys and entries belong to it, so no other caller may get the same one."""
        if value != value.strip() or not value.isprintable():
            raise ValueError("must not begin or end with a space, nor contain invisible characters")
        if value.startswith(GROUP):
            raise ValueError(f"{value} is how grants name a group; choose another name")
        if is_own_name(value):
            raise ValueError(
                f"{value} is reserved, because the gateway uses {ANONYMOUS}, {PROCESS}, {SWEEPER} and {ROLE}… in the "
                "record; choose another name"
            )
        return value

    @model_validator(mode="after")
    def _provable(self) -> "CallerKeys":
        if len(self.access_key_id) != len(self.secret_access_key):
            problem = "each access_key_id needs one secret_access_key, in the same order; make both lists as long"
            raise Misplaced(("secret_access_key" if self.secret_access_key else "access_key_id",), problem)
        if not self.pairs and not self.api_key and not self.certificates:
            raise ValueError("needs an api_key, an access_key_id with its secret_access_key, or certificates; set one")
        return self

    @property
    def pairs(self) -> tuple[KeyPair, ...]:
        return tuple(map(KeyPair, self.access_key_id, texts(self.secret_access_key)))

    def has_shorter_secret(self, length: int) -> bool:
        return any(len(secret) < length for _, secret in self.secrets)

    @property
    def secrets(self) -> list[tuple[str, str]]:
        """Return each secret, with the key of the configuration that has it."""
        keys = [("api_key", key) for key in texts(self.api_key)]
        return [*keys, *(("secret_access_key", pair.secret_access_key) for pair in self.pairs)]


class Login(Section):
    """The gateway as a client of an issuer, which logs people in to the page (OpenID Connect, authorization code).

    The addresses of the issuer are those that it publishes below ``/.well-known/openid-configuration``.
    """

    client_id: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of the gateway at the issuer, which has registered it as a client."""
    client_secret: Annotated[SecretStr, Field(min_length=1)] | None = None
    """None for a public client, which PKCE alone protects."""
    scopes: tuple[Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")], ...] = ("openid",)
    """The scopes that the gateway requests. ``openid`` must be one of them."""
    session: Annotated[float, Field(ge=60, le=43200)] = 43200.0
    """Seconds that a session lasts. It does not ask the issuer again meanwhile."""

    @field_validator("scopes")
    @classmethod
    def _with_identity(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if "openid" not in value:
            raise ValueError("must contain openid, or the issuer sends no ID token")
        return value


class Issuer(Section):
    """An issuer of identity tokens, whose callers need no keys. They are called after it: ``name:sub``."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,49}$")]
    """The name of the issuer here, with which the names of its callers begin."""
    issuer: Annotated[str, Field(min_length=1)] | None = None
    """The claim ``iss`` of its tokens, to the letter. None for tokens without one, of which one issuer may be."""
    audiences: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """The claim ``aud`` has to name one of them."""
    keys: Annotated[str, Field(min_length=1)] | None = None
    """The address of its JSON Web Key Set, or the path of a file with it."""
    secret: SecretStr | None = None
    """In place of keys: the secret that it shares with the gateway, as PostgREST's ``jwt-secret``."""
    authorities: Path | None = None
    """A file with the certificates of the authorities for that address. The default are those of the system."""
    token_path: Path | None = None
    """A file with the token that the address asks for, as Kubernetes does. It is read anew each time."""
    caller_claim: Annotated[tuple[str, ...], Field(min_length=1)] = ("sub",)
    """The claim that names the caller: its key, or the keys on the way to it."""
    groups_claim: tuple[str, ...] = ()
    """The claim that lists the caller's groups. They are called after the issuer: ``name:group``."""
    login: Login | None = None
    """People log in to the page at this issuer."""

    @field_validator("name")
    @classmethod
    def _its_own(cls, value: str) -> str:
        if is_own_name(f"{value}:") or f"{value}:" == GROUP:
            raise ValueError(f"{value}: is how names of the gateway's own and of groups begin; choose another name")
        return value

    @field_validator("keys")
    @classmethod
    def _address(cls, value: str | None) -> str | None:
        return web_address(value) if value is not None and urlsplit(value).scheme else value

    @model_validator(mode="after")
    def _has_keys(self) -> "Issuer":
        if (self.keys is None) == (self.secret is None):
            raise ValueError("needs either keys or secret; set one of them")
        if self.secret is None and (self.issuer is None or not (self.audiences or self.login)):
            raise ValueError("needs issuer and audiences, so that tokens for others prove nothing here; set both")
        if self.secret is not None and len(self.secret.get_secret_value().encode()) < _SHORTEST_SHARED:
            raise Misplaced(
                ("secret",), f"must have {_SHORTEST_SHARED} bytes or more; make one with openssl rand -hex 32"
            )
        return self

    @model_validator(mode="after")
    def _logins_prove_no_requests(self) -> "Issuer":
        if self.login is not None and self.secret is not None:
            raise Misplaced(("login",), "needs keys in place of secret")
        if self.login is not None and self.issuer is not None:
            try:
                browser_address(self.issuer)
            except ValueError as error:
                raise Misplaced(("issuer",), f"{error}, where its login is published") from None
        if self.login is not None and self.login.client_id in self.audiences:
            raise Misplaced(
                ("login", "client_id"),
                "is among audiences, so that the ID token of a login would be an API token; use a client of its own",
            )
        return self


class Identity(Section):
    """The gateway's own proofs for callers that tokens of issuers name. They have no keys in the configuration."""

    signing_keys: tuple[Annotated[SecretStr, Field(min_length=32)], ...] = ()
    """Keys that sign temporary S3 keys and sessions of the page. The first one signs, all of them prove."""


class GrantRule(OfCallers):
    """Actions that some callers may do. ``[[grants]]`` add up, and nothing is granted without one."""

    actions: Annotated[tuple[Action, ...], Field(min_length=1)]
    """The actions that it allows."""
    everything: bool = False
    """Without limits: all tables, functions, buckets and resources, the record and the configuration."""
    tables: tuple[str, ...] = ()
    """``schema.table``; ``*`` for either part. For the actions read and write."""
    functions: tuple[str, ...] = ()
    """``schema.function``, likewise. For the action call."""
    buckets: tuple[str, ...] = ()
    """A bucket with all its keys, or a pattern of ``bucket/key``. For the actions read, write and administer."""
    resources: tuple[Pattern, ...] = ()
    """Patterns of resources. They limit writes and calls; locks, barriers, credentials and epochs go by them alone."""

    @field_validator("tables", "functions")
    @classmethod
    def _qualified(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            schema, dot, rest = name.partition(".")
            if name != "*" and not (schema and dot and rest):
                raise ValueError(f"{name} must be schema.name, with * for either part")
        return value

    @field_validator("buckets")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in value:
            segments = pattern.split("/")
            for position, segment in enumerate(segments):
                if "*" in segment and segment != "*" and not (segment == "**" and position == len(segments) - 1):
                    raise ValueError(f"{pattern}: a segment is a name, * or a last **")
            if not segments[0] or segments[0] == "**":
                raise ValueError(f"{pattern}: must begin with the name of a bucket, or with *")
        return value

    @property
    def places(self) -> dict[PlaceKind, tuple[str, ...]]:
        named = {PlaceKind.TABLE: self.tables, PlaceKind.FUNCTION: self.functions, PlaceKind.BUCKET: self.buckets}
        return {kind: patterns for kind, patterns in named.items() if patterns}

    def in_words(self) -> str:
        """Return it in one line, as people know it from the file."""
        limits = {_plural(kind): patterns for kind, patterns in self.places.items()}
        parts = {"callers": self.callers, "actions": self.actions, **limits}
        parts["resources"] = self.resources
        said = [f"{name} {', '.join(values)}" for name, values in parts.items() if values]
        return "; ".join([*said, "everything"] if self.everything else said)

    @model_validator(mode="after")
    def _has_limits(self) -> "GrantRule":
        limited = bool(self.places or self.resources)
        if self.everything and limited:
            raise ValueError("everything = true leaves no room for tables, functions, buckets or resources; remove one")
        if not self.everything and not limited:
            raise ValueError("has no limits; set tables, functions, buckets or resources, or everything = true")
        return self

    @model_validator(mode="after")
    def _each_part_has_an_effect(self) -> "GrantRule":
        if self.everything:
            return self
        actions, places = set(self.actions), self.places
        at_these = frozenset[Action]().union(*(AT_PLACES[kind] for kind in places))
        for action in sorted(actions):
            if action in OF_ALL:
                raise Misplaced(("actions",), f"{action} is about the whole record; grant it with everything = true")
            if action in OF_RESOURCES and not self.resources:
                raise Misplaced(("actions",), f"{action} goes by resources; set resources as well")
            if action not in OF_RESOURCES and places and action not in at_these:
                raise Misplaced(
                    ("actions",), f"{action} has no effect on the {', '.join(map(_plural, places))} here; remove it"
                )
            if action is Action.ADMINISTER and not places:
                raise Misplaced(("actions",), "administer goes by buckets; set buckets, or everything = true")
        for kind in places:
            if not actions & AT_PLACES[kind]:
                wanted = " or ".join(sorted(AT_PLACES[kind]))
                raise Misplaced((_plural(kind),), f"have no effect without the action {wanted}; add it")
        return self


def _plural(kind: PlaceKind) -> str:
    return f"{kind}s"
