"""What all sections of the configuration have in common."""

from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


class Section(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def origin(value: str) -> str:
    """An address of nothing but scheme, host and port; raises ``ValueError``."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must be nothing but scheme, host and port")
    return value.rstrip("/")


def is_sendable(key: str) -> bool:
    """Whether a key can stand in a header."""
    return key.isascii() and key.isprintable()
