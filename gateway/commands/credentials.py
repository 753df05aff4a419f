"""``gateway credentials``: fenced credentials from a gateway, as S3 clients take them from a process of the user's."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.commands.api_client import Gateway


@dataclass(frozen=True, slots=True)
class Wanted:
    """The credentials to ask for. ``ttl`` is in seconds.

    ``read``: patterns of what they read beside the resource; ``all`` alone for everything.
    """

    resource: str
    token: str
    holder: str | None
    ttl: int
    read: Sequence[str] = ()


def fetch(url: str, api_key: str, wanted: Wanted) -> str:
    """Ask the gateway at ``url`` for credentials; one line of JSON, in the form that AWS calls credential_process.

    Raises ``GatewayError`` with what the gateway said, ``Unavailable`` where it said nothing.
    """
    asked: dict[str, object] = {"resource": wanted.resource, "token": wanted.token, "ttl": wanted.ttl}
    if wanted.holder is not None:
        asked["holder"] = wanted.holder
    if wanted.read:
        asked["read"] = "all" if list(wanted.read) == ["all"] else list(wanted.read)
    gateway = Gateway(url, api_key)
    document = gateway.call("POST", "/v1/credentials", body=asked, status=201)
    try:
        named = {
            "AccessKeyId": document["access_key_id"],
            "SecretAccessKey": document["secret_access_key"],
            "SessionToken": document["session_token"],
            "Expiration": document["expiration"],
        }
    except (LookupError, TypeError) as error:
        raise gateway.stranger() from error
    return json.dumps({"Version": 1, **named})
