"""The base of all sections of the configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE


SHORTEST_SECRET = 8
"""Characters. A client can guess a shorter secret over the network within days."""

NonEmptySecret = Annotated[SecretStr, Field(min_length=1)]
"""A secret that another system chose."""
OwnSecret = Annotated[SecretStr, Field(min_length=SHORTEST_SECRET)]
"""A secret that proves a caller to this gateway."""


class Section(BaseModel):
    """A section. It is frozen, and unknown keys are errors.

    Each secret can come from a file: ``dsn_file`` names the file with ``dsn``. A list of secrets has one a line.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _read_secrets_from_files(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        given = dict(data)
        for name in cls.secrets():
            path = given.pop(f"{name}_file", None)
            if path is None:
                continue
            if name in given:
                raise ValueError(f"has both {name} and {name}_file. Set one of them.")
            secret = _read_secret(f"{name}_file", path)
            given[name] = secret.splitlines() if _is_list(cls.model_fields[name].annotation) else secret
        return given

    @classmethod
    def secrets(cls) -> list[str]:
        """Return the keys of this section that are secrets."""
        return [name for name, field in cls.model_fields.items() if _has_secret(field.annotation)]


def _has_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(map(_has_secret, get_args(annotation)))


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is tuple


def _read_secret(key: str, path: Any) -> str:
    """Return the content of a file without its last line break. Raise ``ValueError``, which does not show it."""
    if not isinstance(path, str) or not path:
        raise ValueError(f"{key} must be a path in quotes.")
    try:
        secret = Path(path).read_text(encoding="utf-8").removesuffix("\n").removesuffix("\r")
    except OSError as error:
        raise ValueError(f"{key}: {path} cannot be read ({error.strerror}). Correct the path, or its rights.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{key}: {path} is not UTF-8. Write the secret as text.") from None
    if not secret:
        raise ValueError(f"{key}: {path} is empty. Write the secret into it.")
    return secret


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
