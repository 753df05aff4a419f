"""httpx clients: those that write under a lock, with its headers on every request to the gateway and on no other.

Also requests to a lock service that speaks JSON.
"""

import json
import ssl
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import urlsplit

import httpx

from gateway.client import api
from gateway.client.cancellation import cancellable
from gateway.client.errors import FencingError, Refused, Stale, Unavailable, needs
from gateway.errors import TokenUsed

if TYPE_CHECKING:
    from postgrest import AsyncPostgrestClient, SyncPostgrestClient


FENCED = ("Fencing-Token", "Fencing-Resource", "Fencing-Holder", "Fencing-Sequencer")
_PORTS = {"http": 80, "https": 443}


class Shown(Protocol):
    """A lock as fenced clients see it, from whatever thread."""

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        ...

    def check(self) -> None:
        """Raise ``LockLost`` if the lock is known to be lost."""
        ...

    def overtaken(self, refusal: Stale) -> None:
        """Note that the fence has refused a request."""
        ...


def origin(url: str) -> tuple[str, str, int | None]:
    """Scheme, host and port: who is asked."""
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").lower(), parts.port or _PORTS.get(scheme)


class Presenter:
    """Puts the lock on requests, and looks at the answers."""

    def __init__(self, hold: Shown, url: str, api_key: str | None) -> None:
        self._hold = hold
        self._origin = origin(url)
        self._api_key = api_key

    def present(self, request: httpx.Request) -> None:
        """Before a request leaves, and each a redirect makes of it. Raises ``LockLost``: then it does not leave."""
        self._hold.check()
        headers: MutableMapping[str, str] = request.headers
        if origin(str(request.url)) != self._origin:
            for name in FENCED:
                headers.pop(name, None)
            return
        if "Fencing-Token" not in headers:  # a caller that holds several locks sends a list of its own
            headers.update({name: value for name, value in self._hold.headers.items() if name not in headers})
        if self._api_key is not None:
            headers.setdefault("Authorization", f"Bearer {self._api_key}")
        api.carry_trace(headers)

    def concerns(self, response: httpx.Response) -> bool:
        """Whether the answer may be a refusal by the fence, so that its body has to be read."""
        return response.status_code == 412 and origin(str(response.request.url)) == self._origin

    def look(self, response: httpx.Response) -> httpx.Response:
        """Check an answer whose body has been read. Raise the refusal of the fence; no other error."""
        refusal = api.refusal_from(response.status_code, response.headers, response.content)
        note(refusal, self._hold)
        kept = httpx.Headers(
            [(name, value) for name, value in response.headers.raw if name.lower() not in _OF_THE_TRANSFER]
        )
        return httpx.Response(412, headers=kept, content=response.content, extensions=response.extensions)


# The body stands there decoded.
_OF_THE_TRANSFER = (b"content-encoding", b"content-length", b"transfer-encoding")


def note(refusal: FencingError, hold: Shown) -> None:
    """Raise a refusal by the fence, after telling the lock. An ordinary 412 is the program's own affair."""
    if isinstance(refusal, Stale):
        hold.overtaken(refusal)
        raise refusal
    if refusal.code in (TokenUsed.code, TokenUsed.s3_code):
        raise refusal


class AsyncTransport(httpx.AsyncBaseTransport):
    """Hands requests on to a session shared by all locks of a client, so that connections are shared, too."""

    def __init__(self, session: Callable[[], httpx.AsyncClient], presenter: Presenter) -> None:
        self._session = session
        self._presenter = presenter

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._presenter.present(request)
        send = partial(self._session().send, request, stream=True, auth=None, follow_redirects=False)
        response = await cancellable(send)
        if not self._presenter.concerns(response):
            return response
        await response.aread()
        return self._presenter.look(response)


class Transport(httpx.BaseTransport):
    """The same for threads."""

    def __init__(self, session: Callable[[], httpx.Client], presenter: Presenter) -> None:
        self._session = session
        self._presenter = presenter

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._presenter.present(request)
        response = self._session().send(request, stream=True, auth=None, follow_redirects=False)
        if not self._presenter.concerns(response):
            return response
        response.read()
        return self._presenter.look(response)


def async_postgrest_client(fenced: httpx.AsyncClient, url: str) -> "AsyncPostgrestClient":
    """Over ``fenced``, which is closed with it."""
    with needs("client"):
        from postgrest import AsyncPostgrestClient  # noqa: PLC0415 - slow to load, and not everybody's

    return AsyncPostgrestClient(f"{url}/v1/tables", headers={}, http_client=fenced)


def postgrest_client(fenced: httpx.Client, url: str) -> "SyncPostgrestClient":
    """Return the client for threads."""
    with needs("client"):
        from postgrest import SyncPostgrestClient  # noqa: PLC0415

    return SyncPostgrestClient(f"{url}/v1/tables", headers={}, http_client=fenced)


SPREAD: Final = 17 / 16
"""An answer held back is held back up to a sixteenth longer, by Consul's documentation of blocking queries."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` is the JSON of the answer, or its text where it is none; the open answer if a stream was asked for."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def said(self) -> str:
        """Return the service's own words about it, for people."""
        if isinstance(self.body, dict):
            error = self.body.get("error")
            of_it = error.get("message") if isinstance(error, dict) else error
            return str(self.body.get("message") or of_it or self.body)
        return str(self.body).strip().rstrip(".") or f"status {self.status}"


class Asking:
    """One lock service, asked at the first of its addresses that takes a connection.

    ``service`` is its name in messages, ``timeout`` in seconds. ``headers`` is asked before each request: a token in
    a file may have been replaced. The connections are made on first use, and again after ``aclose``.
    """

    def __init__(
        self,
        service: str,
        *addresses: str,
        timeout: float,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._service = service
        self._addresses = [address.rstrip("/") for address in addresses]
        self._timeout = timeout
        self._tls = tls
        self._headers = headers
        self._client: httpx.AsyncClient | None = None

    async def __call__(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        content: object = None,
        held_back: float = 0.0,
        stream: bool = False,
    ) -> Answer:
        """Send a request, and have its answer, whatever its status is below 500.

        ``held_back``: seconds for which the service was asked to keep the answer. ``stream``: a success is handed over
        open, and may be silent for ever. Raises ``Unavailable`` where there is no answer, or one that may be another in
        a moment: 408, 429, 5xx.
        """
        timeout = httpx.Timeout(self._timeout, read=None if stream else self._timeout + held_back * SPREAD)
        request = {"params": params, "json": content, "headers": dict(self._headers()), "timeout": timeout}
        with self.reaching():
            response = await self._sent(method, path, request, stream=stream)
            if stream and response.is_success:
                return Answer(response.status_code, response.headers, response)
            await response.aread()
            await response.aclose()
        answer = Answer(response.status_code, response.headers, read(response.text))
        if answer.status in (408, 429) or answer.status >= 500:
            raise Unavailable(
                f"{self._service} cannot answer just now: {answer.said}.", facts={"status": answer.status}
            )
        return answer

    async def _sent(self, method: str, path: str, request: dict[str, Any], *, stream: bool) -> httpx.Response:
        """Return the answer of one address. A request is never sent to two of them."""
        client, failures = self._opened(), list[httpx.TransportError]()
        for address in tuple(self._addresses):
            built = client.build_request(method, address + path, **request)
            try:
                return await cancellable(partial(client.send, built, stream=stream))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failures.append(error)
                # The next request begins with another one.
                self._addresses.append(self._addresses.pop(0))
        raise failures[-1]

    @contextmanager
    def reaching(self) -> Iterator[None]:
        """Raise ``Unavailable`` if the service cannot be reached."""
        try:
            yield
        except (httpx.TransportError, OSError) as error:
            at = ", ".join(self._addresses)
            raise Unavailable(
                f"{self._service} at {at} cannot be reached: {str(error) or type(error).__name__}."
            ) from error

    def refused(self, answer: Answer, needs: str) -> Refused:
        """Return the error for an answer that a retry does not help. ``needs`` names the missing right."""
        advice = f"The credentials need {needs}." if answer.status in (401, 403) else ""
        return Refused(f"{self._service} refuses: {answer.said}.", status=answer.status, advice=advice)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _opened(self) -> httpx.AsyncClient:
        if self._client is None:
            # Each waiter has a request under way.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._client = httpx.AsyncClient(verify=self._tls() or True, limits=limits)
        return self._client


def read(text: str) -> Any:
    """Return the document of an answer; its text if it is no JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
