"""The fencing API as the client library asks it: JSON over a shared session, typed errors instead of statuses."""

import asyncio
import html
import json
import math
import random
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx

from gateway import errors as codes
from gateway.client.cancellation import cancellable
from gateway.client.errors import (
    FencingError,
    Implausible,
    LockLost,
    NotAcquired,
    OutcomeUnknown,
    Refused,
    Stale,
    Unavailable,
    needs_gateway,
)

FIRST = 0.05
LONGEST = 1.0
"""Seconds of the first pause before a request is sent again, and of every later one, at most."""

MOST_ASKED = 2.0
"""Seconds of ``Retry-After`` that are kept to. A queue keeps the place of a client that is away for five."""

_MOST_SECONDS = 86400.0
_SECONDS = re.compile(r"[0-9]{1,18}")
_DATE = "%a, %d %b %Y %H:%M:%S GMT"


def retry_pause(failures: int, asked: float | None, draw: Callable[[], float] = random.random) -> float:
    """Return the seconds to wait after so many ``failures`` in a row, from 1 on. ``asked``: what the answer asks for.

    ``draw`` returns a number from 0 to 1. Clients that failed together must not come back together.
    """
    doubled = min(FIRST * 2.0 ** min(failures - 1, 16), LONGEST)
    return max(doubled * (0.5 + draw() / 2), min(asked or 0.0, MOST_ASKED))


class Retries:
    """Pauses between attempts, until an attempt would begin more than so many ``seconds`` after the first."""

    def __init__(self, seconds: float) -> None:
        self._failures = 0
        self._give_up = time.monotonic() + seconds

    @property
    def are_over(self) -> bool:
        return self._give_up <= time.monotonic()

    async def pause(self, error: FencingError) -> None:
        """Wait until the next attempt. Raise ``error`` if there is no time for it."""
        self._failures += 1
        pause = retry_pause(self._failures, error.retry_after)
        if self._give_up <= time.monotonic() + pause:
            raise error
        await asyncio.sleep(pause)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of the header ``Retry-After``; None without one that can be read.

    A date counts from the ``Date`` of the same answer, so that no two clocks are compared.
    """
    asked = headers.get("retry-after", "").strip(" \t")
    if _SECONDS.fullmatch(asked):
        return min(float(asked), _MOST_SECONDS)
    until, now = _moment(asked), _moment(headers.get("date", "").strip(" \t"))
    if until is None or now is None:
        return None
    return min(max((until - now).total_seconds(), 0.0), _MOST_SECONDS)


def _moment(text: str) -> datetime | None:
    try:
        moment = datetime.strptime(text, _DATE).replace(tzinfo=UTC)
    except ValueError:
        return None
    return moment if len(text) == len("Thu, 01 Jan 1970 00:00:00 GMT") else None


_KINDS: dict[type[codes.GatewayError], type[FencingError]] = {
    codes.TokenStale: Stale,
    codes.TokenDuplicate: Stale,
    codes.TokenImplausible: Implausible,
    codes.LeaseLost: LockLost,
    codes.OutcomeUnknown: OutcomeUnknown,
    codes.Unavailable: Unavailable,
}
# All of these say that nothing was written. Buckets have one code for them, which they share.
_KINDS_OF_UNAVAILABLE = (codes.DatabaseClosed, codes.JournalUnusable, codes.NamingChanged, codes.SessionsShared)
# S3 has codes of its own for the refusals of the fence; the others share theirs with the store.
_BY_CODE = {kind.code: (kind.code, error) for kind, error in _KINDS.items()} | {
    kind.s3_code: (kind.code, error) for kind, error in _KINDS.items() if kind is not codes.LeaseLost
}
_BY_CODE |= {kind.code: (kind.code, Unavailable) for kind in _KINDS_OF_UNAVAILABLE}
_NAME_ITS_AUTHORITY = (
    "Name its authority: SSL_CERT_FILE in the environment, AWS_CA_BUNDLE for gateway run, or authority of FencedClient."
)
_STANDARD = frozenset({"type", "title", "status", "detail", "code", "advice"})
# Facts that PostgREST's keys and S3's elements contain only as words.
_SENTENCES = (
    re.compile(
        r"Resource (?P<resource>\S+): the write presented token (?P<token>\S+), the fence is (?P<fence>\S+), "
        r"raised by (?P<raised_by>.*) at (?P<raised_at>\S+); rejection (?P<rejection>\S+)\."
    ),
    re.compile(
        r"The fencing token (?P<token>\S+) of (?P<resource>\S+) has been overtaken by (?P<fence>[0-9.]*[0-9])\."
    ),
    re.compile(r"Another holder, (?P<raised_by>.*), uses the fencing token (?P<token>\S+) of (?P<resource>\S+)\."),
)
_ELEMENT = re.compile(r"<([A-Za-z][A-Za-z0-9]*)>([^<]*)</\1>")
_PROXY_STATUS = re.compile(r"\berror=([\w.-]+)")


def raise_for_refusal(response: httpx.Response) -> httpx.Response:
    """Return the response if it is not an error; else raise the typed error. Its body must have been read."""
    if not response.is_error:
        return response
    raise refusal_from(response.status_code, response.headers, response.content)


def refusal_from(status: int, headers: Mapping[str, str], body: bytes) -> FencingError:
    """Return the error that an answer with a status from 400 on means. The names of ``headers`` are in lower case."""
    error = _refusal(status, headers, body)
    error.retry_after = retry_after(headers)
    return error


def _refusal(status: int, headers: Mapping[str, str], body: bytes) -> FencingError:
    text = body.decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict) and "detail" in document and "code" in document:
        facts = {name: fact for name, fact in document.items() if name not in _STANDARD}
        return make(status, _word(document["code"]), str(document["detail"]), _words(document.get("advice")), facts)
    if isinstance(document, dict) and "message" in document and "code" in document:
        said = _facts_in(str(document["message"]), str(document.get("details")))
        return make(status, _word(document["code"]), str(document["message"]), _words(document.get("hint")), said)
    if "<Error>" in text:
        elements = {name: html.unescape(value) for name, value in _ELEMENT.findall(text)}
        return of_elements(status, elements)
    shown = _PROXY_STATUS.search(headers.get("proxy-status", ""))
    return make(status, shown[1] if shown else "", f"The answer was {status}.", None, {})


def of_elements(status: int, elements: Mapping[str, Any]) -> FencingError:
    """Return the same from the elements of S3's error document."""
    code, message = str(elements.get("Code", "")), str(elements.get("Message", ""))
    others = {_snake(name): value for name, value in elements.items() if name not in ("Code", "Message", "Resource")}
    return make(status, code, message, "", {**_facts_in(message), **others})


def make(status: int, code: str, message: str, advice: str | None, facts: Mapping[str, Any]) -> FencingError:
    """Return the error of this code. The status decides for a foreign code: only a 4xx means that nothing was done."""
    if code == codes.LockHeld.code:
        return NotAcquired(
            _word(facts.get("resource")),
            holder=_words(facts.get("holder")),
            expires_in=seconds(facts.get("expires_in")),
            code=code,
            facts=facts,
        )
    if code in _BY_CODE:
        own, kind = _BY_CODE[code]
        return kind(message, advice=advice, code=own, facts=facts)
    if status == 429:
        return Unavailable(message, advice=advice, code=code, facts=facts)
    if status >= 500 and status != 501:
        return OutcomeUnknown(message, code=code, facts=facts)
    return Refused(message, status=status, advice=advice or "", code=code, facts=facts)


def _words(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def seconds(value: object) -> float | None:
    """Return a duration from an answer: a finite JSON number. None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _facts_in(*sentences: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for sentence in sentences:
        for pattern in _SENTENCES:
            if match := pattern.search(sentence):
                found |= match.groupdict()
    return found


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


_NAMES = ("traceparent", "tracestate")


def carry_trace(headers: MutableMapping[str, str]) -> None:
    """Add what tells the trace to the headers of a request, unless they tell of one already."""
    if "opentelemetry" not in sys.modules or any(name in headers for name in _NAMES):
        return
    try:
        from opentelemetry import propagate  # noqa: PLC0415 - a part of what is there already
    except ImportError:
        return
    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    headers.update({name: value for name, value in carrier.items() if name in _NAMES})


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
    """Return the lock from its headers, as the fencing API takes it in a body."""
    names = {"token": "Fencing-Token", "holder": "Fencing-Holder", "sequencer": "Fencing-Sequencer"}
    return {key: headers[name] for key, name in names.items() if name in headers}


class Api:
    """Requests that are safe to send again, every one of them: an answer that is lost or unclear is ``Unavailable``.

    ``url`` is empty where there is no gateway.
    """

    def __init__(self, session: Callable[[], httpx.AsyncClient], url: str, api_key: str | None) -> None:
        self.session = session
        self._url = url
        self.api_key = api_key
        self._headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}

    @property
    def url(self) -> str:
        """The address of the gateway. Raises ``Refused`` where there is none."""
        if not self._url:
            raise needs_gateway()
        return self._url

    async def ask(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        *,
        longer: float = 0.0,
        traced: bool = True,
    ) -> Any:
        """Return the JSON of a success, None without a body. ``longer``: seconds the gateway may take on purpose.

        ``traced``: the program's current work asks for it.

        Raise the typed error of a refusal, or ``Unavailable`` without a readable answer.
        """
        session = self.session()
        usual = session.timeout
        read = None if usual.read is None else usual.read + longer
        timeout = httpx.Timeout(connect=usual.connect, read=read, write=usual.write, pool=usual.pool)
        headers = dict(self._headers)
        if traced:
            carry_trace(headers)
        try:
            answer = await cancellable(
                partial(session.request, method, self.url + path, json=content, headers=headers, timeout=timeout)
            )
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise Unavailable(
                    f"The certificate of {self.url} is not of a trusted authority, or not for this name.",
                    advice=_NAME_ITS_AUTHORITY,
                ) from error
            raise Unavailable(f"{self.url} cannot be reached: {type(error).__name__} {error}".rstrip() + ".") from error
        if answer.is_error:
            refusal = refusal_from(answer.status_code, answer.headers, answer.content)
            if isinstance(refusal, OutcomeUnknown):
                unavailable = Unavailable(refusal.message, code=refusal.code, facts=refusal.facts)
                unavailable.retry_after = refusal.retry_after
                raise unavailable from refusal
            raise refusal
        if answer.status_code == 204:
            return None
        try:
            return answer.json()
        except (ValueError, RecursionError):
            raise Refused(f"The server at {self.url} is not a fencing gateway.", status=answer.status_code) from None
