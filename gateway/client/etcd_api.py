"""etcd's v3 API as JSON over HTTP (its gRPC gateway): one call at a time, authentication, and which error is which.

Bytes are base64 in JSON, 64-bit numbers are strings, and what is zero, false or empty is left out of an answer.
"""

import base64
import json
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import httpx

from gateway.client.cancellation import cancellable
from gateway.client.errors import FencingError, Refused, Unavailable

_NO_SUCH_PAGE: Final = "404 page not found"
_BUSY: Final = frozenset({408, 429})


class EtcdApi:
    """A cluster, asked through the first of its members that takes a connection."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        timeout: float,
    ) -> None:
        self._endpoints = [endpoint.rstrip("/") for endpoint in endpoints]
        self._credentials = None if username is None else {"name": username, "password": password or ""}
        self._tls = tls
        self._timeout = timeout
        self._http: httpx.AsyncClient | None = None
        self._token: str | None = None

    async def call(self, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """``POST /v3/{method}``; the answer. Raises ``Unavailable``, or ``Refused`` with the status of HTTP."""
        response = await self._authenticated(method, body, stream=False)
        return _read(response.text)

    async def until_deleted(self, key: bytes, after: int) -> None:
        """Return when ``key`` is deleted after this revision, or when so old a revision is not kept any more.

        Raises ``Unavailable`` where the watch ends by itself.
        """
        create = {"key": encoded(key), "start_revision": str(after + 1), "filters": ["NOPUT"]}
        response = await self._authenticated("watch", {"create_request": create}, stream=True)
        try:
            async for line in response.aiter_lines():
                message = _read(line)
                if "result" not in message:
                    raise Unavailable(f"etcd ended the watch: {_message(message)}.")
                result = message["result"]
                if result.get("events") or "compact_revision" in result:
                    return
                if result.get("canceled"):
                    raise Refused(f"etcd refused the watch: {result.get('cancel_reason', 'no reason')}.", status=403)
        except httpx.TransportError as error:
            raise _unavailable(error) from error
        finally:
            await response.aclose()
        raise Unavailable("etcd ended the watch.")

    async def aclose(self) -> None:
        if self._http is not None:
            http, self._http, self._token = self._http, None, None
            await http.aclose()

    async def _authenticated(self, method: str, body: Mapping[str, Any], *, stream: bool) -> httpx.Response:
        known = self._token
        if known is None and self._credentials:
            known = await self._authenticate()
        response = await self._sent(method, body, known, stream=stream)
        if response.status_code == 401 and self._credentials:
            # Simple tokens live in the memory of one member, and for five minutes: they are lost without any fault.
            await response.aclose()
            response = await self._sent(method, body, await self._authenticate(), stream=stream)
        if response.is_success:
            return response
        raise await _refusal(response)

    async def _authenticate(self) -> str:
        assert self._credentials is not None
        response = await self._sent("auth/authenticate", self._credentials, None, stream=False)
        if not response.is_success:
            raise await _refusal(response, "Name a user of etcd and its password.")
        self._token = str(_read(response.text).get("token"))
        return self._token

    async def _sent(self, method: str, body: Mapping[str, Any], token: str | None, *, stream: bool) -> httpx.Response:
        """The answer of the first endpoint that takes a connection. Nothing is ever sent to two of them."""
        if self._http is None:
            unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            self._http = httpx.AsyncClient(verify=self._tls or True, timeout=self._timeout, limits=unlimited)
        # Watches are silent for as long as nothing happens.
        timeout = httpx.Timeout(self._timeout, read=None if stream else self._timeout)
        headers = {} if token is None else {"Authorization": token}
        failed: httpx.TransportError | None = None
        for endpoint in tuple(self._endpoints):
            request = self._http.build_request(
                "POST", f"{endpoint}/v3/{method}", json=dict(body), headers=headers, timeout=timeout
            )
            try:
                return await cancellable(partial(self._http.send, request, stream=stream))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failed = error
                # The next request begins with another one.
                self._endpoints.append(self._endpoints.pop(0))
            except httpx.TransportError as error:
                raise _unavailable(error) from error
        assert failed is not None
        raise _unavailable(failed) from failed


def encoded(data: bytes) -> str:
    """Bytes as etcd's JSON has them."""
    return base64.b64encode(data).decode()


def decoded(text: str) -> bytes:
    return base64.b64decode(text)


def _read(text: str) -> dict[str, Any]:
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"What answers there is no etcd: {text[:80]!r}.") from error
    if not isinstance(answer, dict):
        raise Unavailable(f"What answers there is no etcd: {text[:80]!r}.")
    return answer


async def _refusal(response: httpx.Response, advice: str | None = None) -> FencingError:
    text = (await response.aread()).decode(errors="replace").strip()
    await response.aclose()
    if text == _NO_SUCH_PAGE:
        return Refused(
            "This etcd does not serve its API as JSON.",
            status=404,
            advice="Set enable-grpc-gateway: true; etcd 3.4 has it off where it is started with a configuration file.",
        )
    try:
        said = _message(json.loads(text))
    except ValueError:
        said = text[:200]
    if response.status_code >= 500 or response.status_code in _BUSY:
        return Unavailable(f"etcd cannot work just now: {said}.")
    return Refused(f"etcd refused the request: {said}.", status=response.status_code, advice=advice)


def _message(answer: Mapping[str, Any]) -> str:
    error = answer.get("error")
    return str(answer.get("message") or (error.get("message") if isinstance(error, dict) else error) or "no reason")


def _unavailable(error: httpx.TransportError) -> Unavailable:
    return Unavailable(f"etcd cannot be reached: {error or type(error).__name__}.")
