"""Section of the configuration: the address and limits of the server."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from gateway.config.section import MEBIBYTE, Misplaced, Section, browser_address, origin


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
    public_address: str | None = None
    """The address by which browsers reach the gateway, or the proxy in front of it. Issuers send people back there."""
    client_authorities: Path | None = None
    """A file with the authorities that sign client certificates. Without it the gateway asks for none."""
    client_certificates: ClientCertificates = ClientCertificates.ASK
    """Whether a connection needs a client certificate: ask accepts one without, demand does not."""
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
            if one != "*" and not (exact and parts.hostname and parts.username is None and "*" not in one):
                raise ValueError(f"{one} must be scheme://host[:port] in lower case, or *")
        return value

    @field_validator("public_address")
    @classmethod
    def _public(cls, value: str | None) -> str | None:
        return None if value is None else browser_address(origin(value))

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
        """Return the address of the gateway on its own machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104 - it is not bound
        scheme = "https" if self.tls_certificate else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"

    @property
    def port(self) -> int:
        return urlsplit(f"//{self.listen}").port or 0
