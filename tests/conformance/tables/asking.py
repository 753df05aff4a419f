"""Plays a row: prepares the tables, sends the request over HTTP, and says what is not as expected."""

import http.client
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from tests.conformance.tables.row import Expected, Row
from tests.conformance.tables.stage import Stage

# The characters that may stand in a target as they are. Any other is sent as its percent-encoded UTF-8.
_PLAIN = "!$%&'()*+,-./:;=?@[]_~"
_PATIENCE = 30


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer. ``headers`` by lower-case name, several of one name joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: str

    def document(self) -> Any:
        """The body as JSON; a text that says so where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return f"no JSON: {self.body[:200]!r}"


class Asker:
    """One connection to one address, such as ``http://127.0.0.1:3000`` or ``http://127.0.0.1:8080/rest/v1``."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        assert parts.hostname, f"{address} is no address of a server"
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, parts.port, timeout=_PATIENCE)
        self._prefix = parts.path.rstrip("/")

    def close(self) -> None:
        self._connection.close()

    def ask(self, row: Row, further: Mapping[str, str] | None = None) -> Answer:
        """Send the request with ``further`` headers. Paths in the answer's headers are as if ``/`` were the prefix.

        Raises ``OSError`` or ``HTTPException`` where no answer comes; the next request has a new connection then.
        """
        try:
            return self._exchange(row, (*row.headers, *(further or {}).items()))
        except BaseException:
            self._connection.close()
            raise

    def _exchange(self, row: Row, headers: Iterable[tuple[str, str]]) -> Answer:
        body = None if row.body is None else row.body.encode()
        self._connection.putrequest(row.method, self._prefix + quote(row.target, safe=_PLAIN))
        for name, value in headers:
            self._connection.putheader(name, value)
        if body is not None or row.writes:
            self._connection.putheader("Content-Length", str(len(body or b"")))
        self._connection.endheaders(body)
        response = self._connection.getresponse()
        found = _joined(response.getheaders())
        for name in ("location", "content-location"):
            if name in found:
                found[name] = found[name].removeprefix(self._prefix)
        return Answer(response.status, found, response.read().decode())


def _joined(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        known = found.get(name.lower())
        found[name.lower()] = value if known is None else f"{known}, {value}"
    return found


def differences(expected: Expected, answer: Answer) -> Iterator[str]:
    """In words: what was expected → what came. The status is first, with the code of an error."""
    if answer.status != expected.status:
        document = answer.document()
        code = f" {document['code']}" if isinstance(document, dict) and "code" in document else ""
        yield f"status: {expected.status} → {answer.status}{code}"
    for name, value in expected.answers.items():
        came = answer.headers.get(name.lower())
        if came != value:
            yield f"{name}: {value} → {came}"
    if expected.is_json and answer.document() != expected.json:
        yield f"body: {json.dumps(expected.json)} → {answer.body}"
    if expected.text is not None and answer.body != expected.text:
        yield f"body: {expected.text!r} → {answer.body!r}"
    for pointer, value in expected.has.items():
        came = _at(answer.document(), pointer)
        if came != value:
            yield f"{pointer}: {value!r} → {came!r}"


def _at(document: Any, pointer: str) -> Any:
    """The value at a JSON pointer; a text that says so where there is none. A name without a slash is a key."""
    for step in pointer.removeprefix("/").split("/"):
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict) and key in document:
            document = document[key]
        elif isinstance(document, list) and key.isdigit() and int(key) < len(document):
            document = document[int(key)]
        else:
            return f"nothing at {key!r}"
    return document


TOKEN = "7"


def play(row: Row, stage: Stage, asker: Asker, headers: Mapping[str, str] | None = None) -> list[str]:
    """The differences, in words; none where all is as expected. ``headers`` are sent beside those of the row."""
    stage.prepare(row.setup)
    answer = asker.ask(row, headers)
    return [*differences(row.expected, answer), *stage.differences(row.after)]


def fencing_headers(row: Row) -> dict[str, str]:
    """Return the headers that a row's request needs at the gateway: a token on a write, and the row's own ones."""
    named = {**({"Fencing-Token": TOKEN} if row.writes else {}), **row.fence}
    return {name: value for name, value in named.items() if value is not None}
