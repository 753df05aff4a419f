"""How a command of this program calls a gateway: one request, and its answer or an error that says what to do."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from gateway.errors import ConfigurationError, GatewayError, Unavailable
from gateway.fencing.resource import canonical

TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class Gateway:
    """Where a gateway is, and what the command proves itself with; None where it need not."""

    url: str
    api_key: str | None = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        *,
        status: int = 200,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> Any:
        """The answer's document. ``path`` is encoded already; ``status`` is what a success is answered with.

        Raises ``GatewayError`` with what the gateway says, ``Unavailable`` where it says nothing, and
        ``ConfigurationError`` for an address that is none, or not a gateway's.
        """
        with self._translated():
            return self._ask(method, path, body, parameters, status).json()

    def fetch(self, path: str, parameters: Mapping[str, Any] | None = None) -> str:
        """An answer that is no JSON, but a text to be kept. Raises what ``call`` raises."""
        with self._translated():
            return self._ask("GET", path, None, parameters, 200).text

    @contextmanager
    def streamed(
        self, path: str, parameters: Mapping[str, Any], *, headers: Mapping[str, str] | None = None, silence: float
    ) -> Iterator[Iterator[bytes]]:
        """An answer that may be longer than memory, in pieces. ``silence``: seconds after which it is taken for lost.

        Raises what ``call`` raises, also in the midst of the answer.
        """
        limits = httpx.Timeout(TIMEOUT, read=silence)
        with self._translated():
            sent = {**self._credentials(), **(headers or {})}
            with httpx.stream("GET", self._address(path), params=parameters, headers=sent, timeout=limits) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise self._refused(answer)
                yield answer.iter_bytes()

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None, status: int
    ) -> httpx.Response:
        headers = self._credentials()
        answer = httpx.request(
            method, self._address(path), json=body, params=parameters, headers=headers, timeout=TIMEOUT
        )
        if answer.status_code != status:
            raise self._refused(answer)
        return answer

    def _address(self, path: str) -> httpx.URL:
        return httpx.URL(self.url.rstrip("/") + path)

    def _credentials(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def _refused(self, answer: httpx.Response) -> GatewayError:
        """What the gateway says; where it says that it cannot at this time, ``Unavailable``."""
        document = answer.json()
        kind = Unavailable if answer.status_code == Unavailable.status else GatewayError
        return kind(str(document["detail"]), advice=str(document["advice"]))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise ConfigurationError(
                "--url: must be an address such as https://gateway.example.com", advice=""
            ) from error
        except httpx.HTTPError as error:
            raise Unavailable(f"The gateway at {self.url} cannot be reached: {type(error).__name__}.") from error
        except (ValueError, LookupError, TypeError) as error:
            raise self.stranger() from error

    def stranger(self) -> ConfigurationError:
        """The error for answers that no gateway gives."""
        return ConfigurationError(f"What answers at {self.url} is not a fencing gateway.", advice="")


@dataclass(frozen=True, slots=True)
class CredentialsRequest:
    """The credentials to ask for. ``ttl`` is in seconds.

    ``read``: patterns of what they read beside the resource; ``all`` alone for everything.
    """

    resource: str
    token: str
    holder: str | None
    ttl: int
    read: Sequence[str] = ()


def fetch_credentials(url: str, api_key: str, wanted: CredentialsRequest) -> str:
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


_PAGE = 1000


@dataclass(frozen=True, slots=True)
class CarriedToken:
    """A fence, and the token it carries."""

    resource: str
    token: str


def start_epoch(gateway: Gateway, fence: CarriedToken, reason: str) -> str:
    """Start a new epoch of a fence, if it carries exactly this token; the token it carries then.

    Raises what ``Gateway.call`` raises; ``GatewayError`` too where the fence carries another token.
    """
    path = f"/v1/fences/{canonical(fence.resource)}/epoch"
    document = gateway.call("POST", path, body={"expected": fence.token, "reason": reason})
    try:
        answered, token = str(document["resource"]), str(document["token"])
    except (LookupError, TypeError) as error:
        raise gateway.stranger() from error
    if answered != fence.resource:
        raise GatewayError(
            f"A new epoch of {answered} has begun, not of {fence.resource}.",
            advice="A proxy on the way changes paths. Have it pass them on as they were sent (docs/fencing.md).",
        )
    return token


def fences_under(gateway: Gateway, prefix: str) -> Iterator[CarriedToken]:
    """Every fence whose name starts with ``prefix``, in the order of names. Raises what ``Gateway.call`` raises."""
    after: str | None = ""
    while after is not None:
        parameters = {"prefix": prefix, "after": after, "limit": _PAGE}
        document = gateway.call("GET", "/v1/fences", parameters=parameters)
        try:
            page = [CarriedToken(str(one["resource"]), str(one["token"])) for one in document["fences"]]
            after = document["after"]
        except (LookupError, TypeError) as error:
            raise gateway.stranger() from error
        yield from page
