"""The base of all sections of the configuration."""

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


class Section(BaseModel):
    """A section. It is frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def origin(value: str) -> str:
    """Return an address that has only scheme, host and port. Raises ``ValueError`` for any other."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must have only scheme, host and port")
    return value.rstrip("/")


def is_sendable(key: str) -> bool:
    """Return whether a key can be sent in a header."""
    return key.isascii() and key.isprintable()
