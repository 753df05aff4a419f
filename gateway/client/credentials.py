"""A lock for programs that cannot be changed: temporary S3 keys, and the environment of a command."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, TypeAlias

from gateway.client.api import Api, said

Read: TypeAlias = Literal["own", "all"] | Sequence[str]
"""The reads of temporary keys: what they write; every bucket; or what they write and what these patterns cover."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Temporary S3 keys that write under one token, to one resource, and to nothing else.

    They read what they write, and beside it what they were asked for with.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expiration: datetime

    def environment(self) -> dict[str, str]:
        """Them as AWS' tools read them."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": self.session_token,
        }


async def issued(api: Api, headers: dict[str, str], pattern: str | None, ttl: int, read: Read = "own") -> Credentials:
    """Ask for them. ``headers`` are those of the lock; ``ttl`` is in seconds."""
    content = {**said(headers), "resource": pattern or headers["Fencing-Resource"], "ttl": ttl}
    if read != "own":
        content["read"] = read if isinstance(read, str) else list(read)
    answer = await api.ask("POST", "/v1/credentials", content)
    return Credentials(
        answer["access_key_id"],
        answer["secret_access_key"],
        answer["session_token"],
        datetime.fromisoformat(answer["expiration"]),
    )


def environment(headers: dict[str, str], url: str, keys: Credentials | None) -> dict[str, str]:
    """What a command finds in its environment: the lock, the gateway, and with ``keys`` what AWS' tools go by."""
    variables = {name.upper().replace("-", "_"): value for name, value in headers.items()}
    variables["GATEWAY_URL"] = url
    if keys is not None:
        variables |= keys.environment()
        variables |= {"AWS_ENDPOINT_URL": url, "AWS_ENDPOINT_URL_S3": url}
    return variables
