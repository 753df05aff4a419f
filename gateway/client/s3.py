"""S3 clients that write under a lock: boto3's and aiobotocore's, its headers signed in, by botocore's own events."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from gateway.client import api
from gateway.client.api import Api, said
from gateway.client.errors import Refused, needs, needs_gateway
from gateway.client.http import FENCED, Shown, note, origin

if TYPE_CHECKING:
    # The types of boto3-stubs and types-aiobotocore. Without them, clients are Any.
    from mypy_boto3_s3.client import S3Client
    from types_aiobotocore_s3.client import S3Client as AsyncS3Client

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


async def issue_credentials(
    api: Api, headers: dict[str, str], pattern: str | None, ttl: int, read: Read = "own"
) -> Credentials:
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


def aws_environment(headers: dict[str, str], url: str, keys: Credentials | None) -> dict[str, str]:
    """Return the environment of a command: the lock, its gateway, and with ``keys`` the variables of AWS' tools."""
    variables = {name.upper().replace("-", "_"): value for name, value in headers.items()}
    if url:
        variables["GATEWAY_URL"] = url
    if keys is not None:
        variables |= keys.environment()
        variables |= {"AWS_ENDPOINT_URL": url, "AWS_ENDPOINT_URL_S3": url}
    return variables


_PATH_STYLE: dict[str, Any] = {"signature_version": "s3v4", "s3": {"addressing_style": "path"}}
_ONE_AT_A_TIME = threading.Lock()

Certificate: TypeAlias = str | tuple[str, str]
"""Paths in PEM form: of a certificate with its key, or of the certificate and of the key."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address and the keys of S3 clients. ``url`` is empty without a gateway.

    ``authority``: the path of a CA bundle, None for the system's. ``certificate``: the path of a client certificate
    with its key, or one path for each.
    """

    url: str
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    region: str
    authority: str | None
    certificate: Certificate | None = None

    @property
    def config(self) -> dict[str, Any]:
        """Return the arguments of botocore's Config for every S3 client."""
        return _PATH_STYLE if self.certificate is None else {**_PATH_STYLE, "client_cert": self.certificate}

    def settings(self) -> dict[str, Any]:
        """Return the arguments of every S3 client. Raise ``Refused`` without keys or a gateway."""
        if not self.url:
            raise needs_gateway()
        if self.access_key_id is None or self.secret_access_key is None:
            raise Refused(
                "There are no S3 keys to sign with.",
                status=401,
                advice="Give FencedClient an access_key_id and a secret_access_key, or use lock.credentials().",
            )
        return {
            "endpoint_url": self.url,
            "region_name": self.region,
            "aws_access_key_id": self.access_key_id,
            "aws_secret_access_key": self.secret_access_key,
            # The environment of an AWS user is meant for AWS.
            "aws_session_token": None,
            "verify": self.authority,
        }


def boto3_client(hold: Shown, endpoint: Endpoint, settings: dict[str, Any]) -> "S3Client":
    """Return a boto3 client. ``settings`` are more arguments of botocore's Config."""
    made = endpoint.settings()
    with needs("client"):
        from botocore.config import Config  # noqa: PLC0415 - slow to load, and not everybody's

        session = _boto3_session()
    config = Config(**endpoint.config).merge(Config(**settings))
    with _ONE_AT_A_TIME:  # a session makes no two clients at once
        client: S3Client = session.client("s3", config=config, **made)
    attach(client, hold, endpoint.url)
    return client


@asynccontextmanager
async def aiobotocore_client(
    hold: Shown, endpoint: Endpoint, settings: dict[str, Any]
) -> "AsyncIterator[AsyncS3Client]":
    """Return an aiobotocore client, closed on exit."""
    made = endpoint.settings()
    with needs("client"):
        # It takes a second to load. In the event loop, that would be a second in which no lock is renewed.
        session = await asyncio.to_thread(_aiobotocore_session)

        from aiobotocore.config import AioConfig  # noqa: PLC0415 - loaded by then
    config = AioConfig(**endpoint.config).merge(AioConfig(**settings))
    async with session.create_client("s3", config=config, **made) as client:
        attach(client, hold, endpoint.url)
        yield client


@cache
def _boto3_session() -> Any:
    """One for all: what takes time is reading the model of the service."""
    import boto3  # noqa: PLC0415

    return boto3.Session()


@cache
def _aiobotocore_session() -> Any:
    from aiobotocore.session import get_session  # noqa: PLC0415

    return get_session()


def attach(client: Any, hold: Shown, url: str) -> None:
    """Make a client of botocore's kind, whose endpoint is the gateway at ``url``, write under the lock from now on."""
    fence = _Fence(hold, url)
    client.meta.events.register("before-sign.s3", fence.present)
    client.meta.events.register("before-send.s3", fence.carry)
    client.meta.events.register("after-call.s3", fence.look)


class _Fence:
    def __init__(self, hold: Shown, url: str) -> None:
        self._hold = hold
        self._origin = origin(url)

    def present(self, request: Any, signature_version: Any, **_: Any) -> None:
        """Before each attempt is signed. Raises ``LockLost``: then it does not leave."""
        self._hold.check()
        for name in FENCED:
            del request.headers[name]  # no error where there is none, and setting one adds to it
        if not self._is_ours(request.url):
            return
        shown = self._hold.headers
        if str(signature_version).endswith("-query"):
            # A presigned URL carries its token itself, because its user sends none of our headers.
            query = "&".join(f"{name.lower()}={quote(value, safe='')}" for name, value in shown.items())
            request.url += f"{'&' if '?' in request.url else '?'}{query}"
        else:
            for name, value in shown.items():
                request.headers[name] = value

    def carry(self, request: Any, **_: Any) -> None:
        """After it is signed: what stands on the way may change the headers of a trace."""
        if self._is_ours(request.url):
            api.carry_trace(request.headers)

    def look(self, http_response: Any, parsed: dict[str, Any], **_: Any) -> None:
        """Raise what the fence has refused, also where it is but one of several deletions."""
        if http_response.status_code >= 300:
            note(api.of_elements(http_response.status_code, parsed.get("Error", {})), self._hold)
        for each in parsed.get("Errors", ()):
            note(api.of_elements(412, each), self._hold)

    def _is_ours(self, url: str) -> bool:
        scheme, host, port = origin(url)
        ours = self._origin
        # A bucket may stand in front of the gateway's name.
        return (scheme, port) == (ours[0], ours[2]) and (host == ours[1] or host.endswith(f".{ours[1]}"))
