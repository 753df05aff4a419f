"""Requests to a lock service that speaks JSON over HTTP, one answer each. etcd's streams are in etcd.py."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import httpx

from gateway.client.cancellation import cancellable
from gateway.client.errors import Refused, Unavailable

SPREAD: Final = 17 / 16
"""An answer held back is held back up to a sixteenth longer, by Consul's documentation of blocking queries."""


@dataclass(frozen=True, slots=True)
class Answer:
    """``body`` is the JSON of the answer, or its text where it is none."""

    status: int
    headers: Mapping[str, str]
    body: Any

    @property
    def said(self) -> str:
        """Return the service's own words about it, for people."""
        if isinstance(self.body, dict):
            return str(self.body.get("message", self.body))
        return str(self.body).strip().rstrip(".") or f"status {self.status}"


class Asking:
    """One lock service. The connections are made on first use, and again after ``aclose``.

    ``service`` is its name in messages, ``timeout`` in seconds. ``headers`` is asked before each request: a token in
    a file may have been replaced.
    """

    def __init__(
        self,
        service: str,
        url: str,
        *,
        timeout: float,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._service = service
        self._url = url
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
        json: object = None,
        held_back: float = 0.0,
    ) -> Answer:
        """Send a request, and have its answer, whatever its status is below 500.

        ``held_back``: seconds for which the service was asked to keep the answer. Raises ``Unavailable`` where there
        is no answer, or one that may be another in a moment: 429, 5xx.
        """
        timeout = httpx.Timeout(self._timeout, read=self._timeout + held_back * SPREAD)
        try:
            client = self._opened()
            headers = dict(self._headers())
            response = await cancellable(
                partial(client.request, method, path, params=params, json=json, headers=headers, timeout=timeout)
            )
        except (httpx.TransportError, OSError) as error:
            raise Unavailable(
                f"{self._service} at {self._url} cannot be reached: {str(error) or type(error).__name__}."
            ) from error
        answer = Answer(response.status_code, response.headers, _body(response))
        if answer.status == 429 or answer.status >= 500:
            raise Unavailable(
                f"{self._service} cannot answer just now: {answer.said}.", facts={"status": answer.status}
            )
        return answer

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
            self._client = httpx.AsyncClient(base_url=self._url, verify=self._tls() or True, limits=limits)
        return self._client


def _body(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError:
        return response.text
