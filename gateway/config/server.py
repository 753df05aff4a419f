"""Sections of the configuration: the address and limits of the server, and its callers."""

from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from gateway.config.section import MEBIBYTE, Misplaced, Section
from gateway.fencing.record import ANONYMOUS, PROCESS, ROLE, SWEEPER, is_own_name


class Server(Section):
    """The address that the gateway listens on, and the limits of requests."""

    listen: str = "127.0.0.1:8080"
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    rest_v1: bool = False
    """Serve tables at ``/rest/v1/{table}`` too, for clients that append that path themselves."""
    max_body: Annotated[int, Field(gt=0)] = 5 * 1024 * MEBIBYTE
    """The largest object, or part of one, in a request; in bytes."""
    domains: tuple[str, ...] = ()
    """Hosts whose subdomains are buckets: ``s3.example.com`` serves ``bucket.s3.example.com``."""
    memory: Annotated[int, Field(gt=0)] = 256 * MEBIBYTE
    """Bytes of bodies in memory at one time, on all planes. A request that needs more waits."""
    body_timeout: Annotated[float, Field(gt=0)] = 30.0
    """Seconds that a client may pause within a body. In all it may take as long, and one second more per 16 KiB."""

    watch: bool = False
    """Reload the configuration when its files change, those of secrets and certificates included."""
    cors_origins: tuple[str, ...] = ()
    """Origins whose pages may use tables from a browser, such as ``https://app.example.com``; ``*`` for all."""

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

    @model_validator(mode="after")
    def _whole_pair(self) -> "Server":
        if self.tls_key is not None and self.tls_certificate is None:
            raise Misplaced(("tls_key",), "needs tls_certificate; set it as well")
        return self

    @property
    def host(self) -> str:
        return urlsplit(f"//{self.listen}").hostname or ""

    @property
    def port(self) -> int:
        return urlsplit(f"//{self.listen}").port or 0


class KeyPair(Section):
    """A pair of keys that signs S3 requests."""

    access_key_id: Annotated[str, Field(min_length=1)]
    secret_access_key: SecretStr


class CallerKeys(Section):
    """A caller and its keys. It may have several at a time, so that they can be changed one after the other."""

    name: Annotated[str, Field(min_length=1, max_length=200)]
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    api_key: SecretStr | None = None
    api_keys: tuple[SecretStr, ...] = ()
    """Further API keys of the same caller."""
    keys: tuple[KeyPair, ...] = ()
    """Further pairs of the same caller. Fenced credentials are derived from the first one of all."""
    admin: bool = False
    """May administer buckets: create and delete them, change their policies and settings. It may also audit."""
    audit: bool = False
    """May read the whole record and the page. Other callers see their own entries only."""

    @field_validator("name")
    @classmethod
    def _its_own(cls, value: str) -> str:
        """Check a name. Locks, idempotency keys and entries belong to it, so no other caller may get the same one."""
        if value != value.strip() or not value.isprintable():
            raise ValueError("must not begin or end with a space, nor contain invisible characters")
        if is_own_name(value):
            raise ValueError(
                f"{value} is reserved, because the gateway uses {ANONYMOUS}, {PROCESS}, {SWEEPER} and {ROLE}… in the "
                "record; choose another name"
            )
        return value

    @model_validator(mode="after")
    def _provable(self) -> "CallerKeys":
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together: set both, or neither")
        if not self.every_pair and not self.every_api_key:
            raise ValueError("needs an api_key, or an access_key_id with its secret_access_key")
        return self

    @property
    def every_api_key(self) -> tuple[SecretStr, ...]:
        return (*(() if self.api_key is None else (self.api_key,)), *self.api_keys)

    @property
    def every_pair(self) -> tuple[KeyPair, ...]:
        if self.access_key_id is None or self.secret_access_key is None:
            return self.keys
        return (KeyPair(access_key_id=self.access_key_id, secret_access_key=self.secret_access_key), *self.keys)

    @property
    def shortest_secret(self) -> int:
        """Return the length of its shortest secret in characters."""
        secrets = (*self.every_api_key, *(pair.secret_access_key for pair in self.every_pair))
        return min(len(secret.get_secret_value()) for secret in secrets)


class Auth(Section):
    anonymous: bool = False
    """Admit anonymous callers to tables and the fencing API. For trials only; S3 requests are always signed."""
