"""Requests about the records, fences and locks of several databases: which of them have one answer for all."""

import re
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from gateway import budget
from gateway.api.authorisation import RULES, is_denied
from gateway.api.requests import path_as_sent
from gateway.auth.callers import Callers
from gateway.db.export import ExportFormat
from gateway.errors import GatewayError
from gateway.fencing.merging import read_cursor
from gateway.http.head import Head
from gateway.http.middleware import answer_problem
from gateway.merged import lists
from gateway.merged.asking import Databases, Pairs, Refused
from gateway.merged.exports import export
from gateway.merged.streams import stream

PARAMETER = "database"
"""The query parameter that names a database. It may come several times."""

_LISTS = {
    "/v1/events": (lists.list_entries, "events"),
    "/v1/rejections": (lists.list_entries, "rejections"),
    "/v1/incidents": (lists.list_incidents, "incidents"),
    "/v1/fences": (lists.list_names, "fences"),
    "/v1/leases": (lists.list_names, "locks"),
    "/v1/webhooks": (lists.list_webhooks, "webhooks"),
    "/v1/record/head": (lists.list_heads, "heads"),
}
_STREAM = re.compile(r"/v1/(?:events|rejections)/stream")
_EXPORT = re.compile(r"/v1/(events|rejections)\.(csv|ndjson)")
_ENTRY = re.compile(r"(/v1/(?:events|rejections|incidents)/[^/]+)(/acknowledgements)?")


def is_for_all(method: str, path: str) -> bool:
    """Return whether several databases have one answer to a request."""
    if method == "GET" and (path in _LISTS or _EXPORT.fullmatch(path)):
        return True
    entry = _ENTRY.fullmatch(path)
    return entry is not None and method == ("GET" if entry[2] is None else "POST")


class Merged:
    """The API of several databases: it asks each, and merges their answers. ``apps`` are theirs, by name."""

    def __init__(
        self,
        apps: Mapping[str, ASGIApp],
        keys: Callers,
        ending: Callable[[], bool],
        owner: Callable[[str], str],
        refusing: ASGIApp,
    ) -> None:
        """``keys`` proves the caller before any database is asked. ``ending``: whether this gateway is retired.

        ``owner`` names the database of a resource. ``refusing`` answers what each database would deny. So one record
        has the denial, and not all of them.
        """
        self._apps, self._keys, self._ending, self._owner = apps, keys, ending, owner
        self._refusing = refusing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = False

        async def noted(message: object) -> None:
            nonlocal begun
            begun = True
            await send(message)  # type: ignore[arg-type]

        try:
            head = Head.of(scope)
            principal = self._keys.by_bearer(head.headers, head.certificate)
            budget.serve(scope["state"], principal.name)
            if head.method == "GET" and is_denied(RULES["GET", _route(path_as_sent(scope))], principal):
                await self._refusing(scope, receive, noted)
                return
            query = parse_qsl(head.query_string.decode("latin-1"), keep_blank_values=True)
            pairs = [pair for pair in query if pair[0] != PARAMETER]
            databases = Databases(self._apps, scope, self._ending, self._owner)
            app = await self._answer(databases, head, path_as_sent(scope), pairs)
            await app(scope, receive, noted)
        except Refused as refused:
            scope["state"]["error"] = refused.error
            await refused.answer.send(send)
        except GatewayError as error:
            if begun:
                raise  # the client must not take the answer for complete
            scope["state"]["error"] = error
            await answer_problem(error, send)

    async def _answer(self, databases: Databases, head: Head, path: str, pairs: Pairs) -> ASGIApp:
        if path in _LISTS:
            listed, field = _LISTS[path]
            return await listed(databases, pairs, field)
        if found := _EXPORT.fullmatch(path):
            kept, after = _without_after(pairs)
            cursor = read_cursor(after, databases.names) if after is not None else {}
            return export(databases, kept, cursor, found[1], ExportFormat(found[2]))
        if _STREAM.fullmatch(path):
            kept, after = _without_after(pairs)
            last = head.value(b"last-event-id")
            after = after if last is None else last.decode("latin-1")
            return stream(databases, kept, read_cursor(after, databases.names) if after is not None else {})
        entry = _ENTRY.fullmatch(path)
        assert entry is not None
        if entry[2] is None:
            return await lists.read(databases, pairs, path)
        name, answer = await lists.find(databases, pairs, entry[1])
        if answer.status != 200:
            raise Refused(answer, None)
        return self._apps[name]


def _route(path: str) -> str:
    """Return the route that each database is asked for."""
    entry = None if _STREAM.fullmatch(path) else _ENTRY.fullmatch(path)
    return path if entry is None else f"{entry[1].rpartition('/')[0]}/{{id}}"


def _without_after(pairs: Pairs) -> tuple[Pairs, str | None]:
    """Return the parameters without ``after``, and its value. Raises ``RequestMalformed`` if it comes twice."""
    after = lists.Asked.read(pairs).given.get("after")
    return [pair for pair in pairs if pair[0] != "after"], after
