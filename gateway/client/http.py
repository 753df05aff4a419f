"""httpx clients that write under a lock: its headers on every request to the gateway, and on no other."""

from collections.abc import Callable, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import httpx

from gateway.client import api
from gateway.client.cancellation import cancellable
from gateway.client.errors import FencingError, Stale, needs
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
