"""The base of all sections of the configuration. A secret may come from a file: ``dsn_file`` stands for ``dsn``."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator

KIBIBYTE = 1024
MEBIBYTE = 1024 * KIBIBYTE
FROM_FILE = "_file"


@dataclass(frozen=True)
class Limits:
    """Limits that no file sets. Only tests have others, to be quick or patient. In seconds, or bytes."""

    body_timeout: float = 30.0
    """The longest pause within a body. In all it may take as long, and one second more per 16 KiB."""
    lock_timeout: float = 10.0
    """A write waits for the fence row of its resource, or for another row."""
    idle_timeout: float = 5.0
    """Then the database ends the transaction of a gateway that was paused inside it."""
    connect_timeout: float = 5.0
    """A new session opens."""
    table_body: int = 64 * MEBIBYTE
    """The largest request to a table, and the largest answer."""
    store_timeout: float = 60.0
    """One request to the store. For a streamed body: without progress."""
    memory_threshold: int = 8 * MEBIBYTE
    """Bodies up to this are put from memory. Larger ones are staged in the store as parts, as they arrive."""
    pending_wait: float = 5.0
    """A writer waits for another write of its own holder to the same key before it settles that one."""
    sweep_interval: float = 60.0
    """Between two rounds of the sweeper; 0: never."""
    max_wait: float = 60.0
    """One request waits in the queue of a lock."""


class Misplaced(ValueError):
    """A problem that concerns the key at ``place``, as seen from the section that found it."""

    def __init__(self, place: tuple[str | int, ...], problem: str) -> None:
        super().__init__(problem)
        self.place = place


class Section(BaseModel):
    """A section. It is frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def secret_keys(cls) -> tuple[str, ...]:
        """Return the keys with secrets, each of which can be in a file of its own."""
        return tuple(name for name, field in cls.model_fields.items() if _holds_secret(field.annotation))

    @model_validator(mode="before")
    @classmethod
    def _secrets_from_files(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        values = dict(given)
        for key in cls.secret_keys():
            path = values.pop(key + FROM_FILE, None)
            if path is None:
                continue
            if given.get(key) is not None:
                raise Misplaced((key + FROM_FILE,), f"{key} is given as well; remove one of them")
            secret = _read(key + FROM_FILE, path)
            many = "tuple" in str(cls.model_fields[key].annotation)
            values[key] = secret.splitlines() if many else secret
        return values


def _holds_secret(annotation: Any) -> bool:
    return annotation is SecretStr or any(_holds_secret(part) for part in get_args(annotation))


def _read(key: str, path: Any) -> str:
    """Return the secret in a file, without one newline at its end. No message repeats what the file holds."""
    if not isinstance(path, str | Path):
        raise Misplaced((key,), "must be a path in quotes")
    try:
        secret = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Misplaced((key,), f"{path} cannot be read: {error.strerror}; correct the path or its rights") from error
    except ValueError as error:
        raise Misplaced((key,), f"{path} is not text in UTF-8; write the secret into it as text") from error
    secret = secret.removesuffix("\n").removesuffix("\r")
    if not secret.strip():
        raise Misplaced((key,), f"{path} is empty; write the secret into it")
    return secret


def origin(value: str) -> str:
    """Return an address that has only scheme, host and port. Raises ``ValueError`` for any other."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http:// or https:// address")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must have only scheme, host and port")
    return value.rstrip("/")


def web_address(value: str) -> str:
    """Return an address with its path. Raises ``ValueError`` unless it is http:// or https://, without credentials."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.fragment:
        raise ValueError("must be an http:// or https:// address")
    return value


def browser_address(value: str) -> str:
    """Return an address at which browsers log in. Raises ``ValueError`` unless it is https://, or on this machine."""
    host = urlsplit(web_address(value)).hostname
    if urlsplit(value).scheme != "https" and host not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError("must be an https:// address; http:// is for localhost alone")
    return value
