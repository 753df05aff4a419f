"""The fencing API as the client library asks it: JSON over a shared session, typed errors instead of statuses."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import httpx

from gateway.client import refusals, tracing
from gateway.client.cancellation import cancellable
from gateway.client.errors import OutcomeUnknown, Refused, Unavailable


def meant(view: Any, resource: str) -> Any:
    """Return an answer that is about ``resource``. Raise ``Refused`` if it is about another one.

    A canonical name stands in a path as it is. A proxy that decodes or normalises paths makes another name of it.
    """
    if isinstance(view, dict) and view.get("resource") == resource:
        return view
    answered = view.get("resource") if isinstance(view, dict) else None
    raise Refused(
        f"The gateway was asked about {resource}, and answered about {answered}.",
        status=httpx.codes.OK,
        advice="A proxy on the way changes paths. Have it pass them on as they were sent (docs/fencing.md).",
    )


def said(headers: Mapping[str, str]) -> dict[str, Any]:
    """What the headers of a lock say, as the fencing API takes it in a body."""
    names = {"token": "Fencing-Token", "holder": "Fencing-Holder", "sequencer": "Fencing-Sequencer"}
    return {key: headers[name] for key, name in names.items() if name in headers}


class Api:
    """Requests that are safe to send again, every one of them: an answer that is lost or unclear is ``Unavailable``."""

    def __init__(self, session: Callable[[], httpx.AsyncClient], url: str, api_key: str | None) -> None:
        self._session = session
        self._url = url
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    async def ask(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        *,
        longer: float = 0.0,
        traced: bool = True,
    ) -> Any:
        """The JSON of a success, None where it has no body. ``longer``: seconds the gateway may take on purpose.

        ``traced``: it is asked for what the program is doing right now.

        Raises the typed error of a refusal, ``Unavailable`` where there was no answer or none that can be read.
        """
        session = self._session()
        usual = session.timeout
        read = None if usual.read is None else usual.read + longer
        timeout = httpx.Timeout(connect=usual.connect, read=read, write=usual.write, pool=usual.pool)
        headers = dict(self._headers)
        if traced:
            tracing.carry(headers)
        try:
            answer = await cancellable(
                partial(session.request, method, self._url + path, json=content, headers=headers, timeout=timeout)
            )
        except httpx.TransportError as error:
            raise Unavailable(
                f"{self._url} cannot be reached: {type(error).__name__} {error}".rstrip() + "."
            ) from error
        if answer.is_error:
            refusal = refusals.read(answer.status_code, answer.headers, answer.content)
            if isinstance(refusal, OutcomeUnknown):
                raise Unavailable(refusal.message, code=refusal.code, facts=refusal.facts) from refusal
            raise refusal
        if answer.status_code == 204:
            return None
        try:
            return answer.json()
        except ValueError:
            raise Refused(f"What answers at {self._url} is not a fencing gateway.", status=answer.status_code) from None
