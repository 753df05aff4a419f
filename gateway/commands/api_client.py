"""Requests of the commands to a gateway, among them `gateway credentials` and `gateway epoch`."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from gateway.commands.environment import SET_API_KEY
from gateway.errors import ConfigurationError, GatewayError, Unauthenticated, Unavailable
from gateway.fencing.resource import canonical

TIMEOUT = 30.0
LONGEST_SILENCE = 600.0
"""Seconds: an export may search for long."""

_PAGE = 1000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Gateway:
    """The address of a gateway, and the API key of the command; None if it needs none."""

    url: str
    api_key: str | None = field(repr=False)

    def call(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        *,
        status: int = 200,
        body: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> T:
        """Send a request and return what ``read`` takes from the document of the answer.

        ``path`` is encoded; ``status`` is that of a success. Parameters that are None or an empty list are not sent.

        Raises ``GatewayError`` with the gateway's message, ``Unavailable`` without an answer, and
        ``ConfigurationError`` for an invalid address, or for an answer that no gateway gives.
        """
        with self._translated():
            return read(self._ask(method, path, body, parameters, status).json())

    def pages(
        self, path: str, name: str, bound: str, parameters: Mapping[str, Any], most: int = sys.maxsize
    ) -> Iterator[tuple[list[Any], Mapping[str, Any]]]:
        """Yield the entries of a list, page by page, with the whole answer, until ``most`` of them are there.

        ``name``: the field of the entries. ``bound``: the field, and the parameter, that leads to the next page.
        """
        start: Mapping[str, Any] = {}
        while most > 0:
            asked = {**parameters, **start, "limit": min(_PAGE, most)}
            page, entries, following = self.call(
                "GET", path, lambda page: (page, list(page[name]), page[bound]), parameters=asked
            )
            yield entries, page
            if following is None:
                return
            start, most = {bound: following}, most - len(entries)

    def fetch(self, path: str, parameters: Mapping[str, Any] | None = None) -> str:
        """Fetch a text. Raises what ``call`` raises."""
        with self._translated():
            return self._ask("GET", path, None, parameters, 200).text

    @contextmanager
    def streamed(
        self,
        path: str,
        parameters: Mapping[str, Any],
        *,
        headers: Mapping[str, str] | None = None,
        silence: float = LONGEST_SILENCE,
    ) -> Iterator[Iterator[bytes]]:
        """Stream an answer in pieces. After ``silence`` seconds without one, the connection counts as lost.

        Raises what ``call`` raises, also in the middle of the answer.
        """
        limits = httpx.Timeout(TIMEOUT, read=silence)
        with self._translated():
            sent = {**self._credentials(), **(headers or {})}
            with httpx.stream("GET", self._address(path, parameters), headers=sent, timeout=limits) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise self._refused(answer)
                yield answer.iter_bytes()

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, parameters: Mapping[str, Any] | None, status: int
    ) -> httpx.Response:
        headers = self._credentials()
        answer = httpx.request(method, self._address(path, parameters), json=body, headers=headers, timeout=TIMEOUT)
        if answer.status_code != status:
            raise self._refused(answer)
        return answer

    def _address(self, path: str, parameters: Mapping[str, Any] | None) -> httpx.URL:
        given = {name: value for name, value in (parameters or {}).items() if value is not None and value != []}
        return httpx.URL(self.url.rstrip("/") + path, params=given)

    def _credentials(self) -> dict[str, str]:
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def _refused(self, answer: httpx.Response) -> GatewayError:
        """Return the error in an answer. Its class follows the status, and is ``GatewayError`` for most."""
        document = answer.json()
        if answer.status_code == Unauthenticated.status:
            return Unauthenticated(str(document["detail"]), advice=SET_API_KEY)
        kind = Unavailable if answer.status_code == Unavailable.status else GatewayError
        return kind(str(document["detail"]), advice=str(document["advice"]))

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
            if getattr(error, "encoding", "idna") != "idna":
                raise  # an answer or a key cannot be read, and the name of the host can
            raise ConfigurationError(
                "--url: must be an address such as https://gateway.example.com", advice=""
            ) from error
        except httpx.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise ConfigurationError(
                    f"The certificate of {self.url} is not of a trusted authority, or not for this name.",
                    advice="Set SSL_CERT_FILE to the file of its authority.",
                ) from error
            raise Unavailable(
                f"The gateway at {self.url} cannot be reached: {type(error).__name__}.",
                advice="Start it, or correct --url or GATEWAY_URL.",
            ) from error
        except (ValueError, LookupError, TypeError) as error:
            raise self.no_gateway() from error

    def no_gateway(self) -> ConfigurationError:
        """Return the error for an answer that no gateway gives."""
        return ConfigurationError(f"The server at {self.url} is not a fencing gateway.", advice="")


def fetch_credentials(
    gateway: Gateway, resource: str, token: str, holder: str | None, ttl: int, read: Sequence[str] = ()
) -> str:
    """Request credentials, and return them as one line of JSON in the format of AWS's credential_process.

    ``ttl`` is in seconds. ``read`` are patterns of further readable resources; ``all`` alone stands for everything.
    Raises what ``Gateway.call`` raises.
    """
    asked: dict[str, object] = {"resource": resource, "token": token, "ttl": ttl}
    if holder is not None:
        asked["holder"] = holder
    if read:
        asked["read"] = "all" if list(read) == ["all"] else list(read)
    return gateway.call("POST", "/v1/credentials", _for_aws, body=asked, status=201)


def _for_aws(document: Any) -> str:
    named = {
        "AccessKeyId": document["access_key_id"],
        "SecretAccessKey": document["secret_access_key"],
        "SessionToken": document["session_token"],
        "Expiration": document["expiration"],
    }
    return json.dumps({"Version": 1, **named})


def start_epoch(gateway: Gateway, resource: str, carried: str, reason: str) -> str:
    """Start a new epoch of a fence that carries exactly this token, and return the token that it carries then.

    Raises what ``Gateway.call`` raises, and ``GatewayError`` if the fence carries another token.
    """
    answered, token = gateway.call(
        "POST",
        f"/v1/fences/{canonical(resource)}/epoch",
        lambda document: (str(document["resource"]), str(document["token"])),
        body={"expected": carried, "reason": reason},
    )
    if answered != resource:
        raise GatewayError(
            f"The gateway started a new epoch of {answered}, not of {resource}.",
            advice="A proxy on the way changes paths. Configure it to pass them on unchanged (docs/fencing.md).",
        )
    return token


def fences_under(gateway: Gateway, prefix: str, database: str | None) -> Iterator[tuple[str, str]]:
    """Yield every resource of a database that starts with ``prefix``, by name, with the token of its fence.

    ``database``: None if the gateway has only one. Raises what ``Gateway.call`` raises.
    """
    for page, _ in gateway.pages("/v1/fences", "fences", "after", {"prefix": prefix, "database": database}):
        for fence in page:
            yield str(fence["resource"]), str(fence["token"])
