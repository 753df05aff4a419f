"""The environment of commands that call a gateway: its variables, and the API key.

It needs no library of the server. ``gateway.config`` alone reads the settings of a server.
"""

import os
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from gateway.errors import ConfigurationError
from gateway.text import is_sendable

SET_API_KEY = "Set GATEWAY_API_KEY to the API key of a caller, or name its file with --api-key-file."

GatewayUrl: TypeAlias = Annotated[
    str, typer.Option(envvar="GATEWAY_URL", help="The address of the gateway, e.g. https://gateway.example.com.")
]
ApiKeyFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="A file with the API key, instead of GATEWAY_API_KEY.")
]
AdminKeyFile: TypeAlias = Annotated[
    Path | None, typer.Option(help="A file with an administrator's API key, instead of GATEWAY_API_KEY.")
]


def api_key(path: Path | None) -> str:
    """Return the API key of a command that calls a gateway: from the file, or else from ``GATEWAY_API_KEY``.

    It is never an argument, because every user of a machine can see arguments. Raises ``ConfigurationError``.
    """
    if path is None:
        key, source = _own_key(), "GATEWAY_API_KEY"
    else:
        source = str(path)
        try:
            key = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{path}: the API key cannot be read.", advice="") from error
    if not key or not is_sendable(key):
        raise ConfigurationError(f"{source}: there is no API key.", advice=SET_API_KEY)
    return key


def api_key_if_any(path: Path | None) -> str | None:
    """Return the API key for a command that may do without; None if none is set. Raises ``ConfigurationError``."""
    return None if path is None and not _own_key() else api_key(path)


def secret_of(option: str, given: str | None, path: Path | None) -> str | None:
    """Return a secret from an option, or from the file that stands for it. Raises ``ConfigurationError``."""
    if given is not None and not given.strip():
        raise ConfigurationError(f"{option} is empty.", advice="Is the variable in it set? Set it, or leave it out.")
    if path is None:
        return given
    if given is not None:
        raise ConfigurationError(f"{option} and {option}-file are both given; remove one of them", advice="")
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{option}-file: {path} cannot be read.", advice="") from error
    if not secret:
        raise ConfigurationError(f"{option}-file: {path} is empty; write the secret into it", advice="")
    if len(secret.splitlines()) > 1:
        raise ConfigurationError(f"{option}-file: {path} has several lines; leave the secret alone in it", advice="")
    return secret


def secret_access_key() -> str | None:
    """Return the secret access key of an object store from its usual variable. It is never an argument."""
    return os.environ.get("AWS_SECRET_ACCESS_KEY")  # noqa: TID251 - this module reads it


def environment() -> dict[str, str]:
    """Return the environment of this process, for the commands that it starts."""
    return dict(os.environ)  # noqa: TID251 - to be passed on, not to be read


def _own_key() -> str:
    return os.environ.get("GATEWAY_API_KEY", "")  # noqa: TID251 - this module reads it


def taken_from_environment(*variables: str) -> dict[str, str]:
    """Return those of the variables that are set, and remove them, so that no started process inherits them."""
    return {name: os.environ.pop(name) for name in variables if name in os.environ}  # noqa: TID251 - as above
