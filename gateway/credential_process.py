"""``gateway credentials``: fenced credentials from a gateway, as S3 clients take them from a process of the user's."""

import json
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.errors import ConfigurationError, GatewayError, Unavailable

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the credentials are to be good for. ``ttl`` is in seconds."""

    resource: str
    token: str
    holder: str | None
    ttl: int


def fetch(url: str, api_key: str, wanted: Wanted) -> str:
    """Ask the gateway at ``url`` for credentials; one line of JSON, in the form that AWS calls credential_process.

    Raises ``GatewayError`` with what the gateway said, ``Unavailable`` where it said nothing.
    """
    asked = {"resource": wanted.resource, "token": wanted.token, "ttl": wanted.ttl}
    if wanted.holder is not None:
        asked["holder"] = wanted.holder
    try:
        address = httpx.URL(url.rstrip("/") + "/v1/credentials")
        answer = httpx.post(address, json=asked, headers={"Authorization": f"Bearer {api_key}"}, timeout=TIMEOUT)
        document = answer.json()
        if answer.status_code != 201:
            raise _refused(document)
        named = {
            "AccessKeyId": document["access_key_id"],
            "SecretAccessKey": document["secret_access_key"],
            "SessionToken": document["session_token"],
            "Expiration": document["expiration"],
        }
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ConfigurationError("--url: must be an address such as https://gateway.example.com", advice="") from error
    except httpx.HTTPError as error:
        raise Unavailable(f"The gateway at {url} cannot be reached: {type(error).__name__}.") from error
    except (ValueError, LookupError, TypeError) as error:
        raise ConfigurationError(f"What answers at {url} is not a fencing gateway.", advice="") from error
    return json.dumps({"Version": 1, **named})


def _refused(problem: Any) -> GatewayError:
    """The problem document of a gateway, as an error here."""
    return GatewayError(str(problem["detail"]), advice=str(problem["advice"]))
