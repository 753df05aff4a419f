"""Lists of all databases as one: entries by time, fences and locks by name. Single entries, wherever they are.

An answer without one of the databases says so in ``missing``, and its cursor still leads to what was left out.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from heapq import merge as merge_by_name
from itertools import islice
from typing import Any, TypeAlias

import orjson

from gateway.errors import NotFound, RequestMalformed, Unavailable
from gateway.fencing.merging import Page, merge, read_cursor, write_cursor
from gateway.http.body import offload
from gateway.merged.asking import Answer, Databases, Pairs, Refused

Document: TypeAlias = dict[str, Any]

_BOUNDS = ("before", "after")
_SINGLE = (*_BOUNDS, "limit", "order")
_USUAL = 100


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for a list. ``given``: the parameters that shape the page."""

    pairs: Pairs
    given: Mapping[str, str]

    @classmethod
    def read(cls, pairs: Pairs) -> "Asked":
        """Read the parameters. Raises ``RequestMalformed`` for one that comes twice, or a limit that is no number."""
        given: dict[str, str] = {}
        for key, value in pairs:
            if key in _SINGLE:
                if key in given:
                    raise RequestMalformed(f"{key}: comes twice.")
                given[key] = value
        limit = given.get("limit", "0")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 10):
            raise RequestMalformed("limit: must be a whole number.")
        return cls(pairs, given)

    @property
    def most(self) -> int:
        """Return the size of the page. Each database has checked it when this is called."""
        return int(self.given.get("limit", _USUAL))

    @property
    def newest_first(self) -> bool:
        return self.given.get("order", "newest") != "oldest"


@dataclass(frozen=True, slots=True)
class Found:
    """The answers of the databases that have answered, and the names of the others."""

    answers: Mapping[str, Answer]
    missing: Sequence[str]

    async def merged(self, merge: Callable[[Mapping[str, Document]], Document]) -> Answer:
        """Return the answer for all, from the document of each of them."""
        some = next(iter(self.answers.values()))

        def written() -> Answer:
            document = merge({name: orjson.loads(answer.body) for name, answer in self.answers.items()})
            return some.with_body(orjson.dumps({**document, "missing": self.missing}))

        return await offload(sum(len(answer.body) for answer in self.answers.values()), written)


async def ask_all(databases: Databases, pairs_of: Callable[[str], Pairs], path: str | None = None) -> Found:
    """Ask all side by side. Raises ``Refused`` for the first refusal, and ``Unavailable`` if none has answered."""

    async def asked(name: str) -> Answer | Refused | None:
        try:
            answer = await databases.ask(name, pairs_of(name), path)
        except Unavailable:
            return None
        except Refused as refused:
            return refused
        return answer if answer.status < 500 else None

    answers = await asyncio.gather(*map(asked, databases.names))
    found: dict[str, Answer] = {}
    for name, answer in zip(databases.names, answers, strict=True):
        if isinstance(answer, Refused):
            raise answer
        if answer is not None and answer.status != 200:
            raise Refused(answer, None)
        if answer is not None:
            found[name] = answer
    if not found:
        raise Unavailable(f"None of the databases {', '.join(databases.names)} has answered.")
    return Found(found, [name for name in databases.names if name not in found])


async def list_entries(databases: Databases, pairs: Pairs, field: str) -> Answer:
    """Return a page of the records, by time. Each database gets its own part of the cursors."""
    asked = Asked.read(pairs)
    cursors = {bound: read_cursor(asked.given[bound], databases.names) for bound in _BOUNDS if bound in asked.given}
    kept = [pair for pair in pairs if pair[0] not in _BOUNDS]

    def pairs_of(name: str) -> Pairs:
        return [*kept, *((bound, str(cursor[name])) for bound, cursor in cursors.items() if name in cursor)]

    found = await ask_all(databases, pairs_of)
    bound = "before" if asked.newest_first else "after"

    def merged(documents: Mapping[str, Document]) -> Document:
        page = merge(
            {name: Page(document[field], document[bound] is not None) for name, document in documents.items()},
            asked.most,
            time=_time_of("at"),
            position=lambda entry: int(entry["position"]),
            newest_first=asked.newest_first,
            cursor=cursors.get(bound),
        )
        leads: Document = dict.fromkeys(_BOUNDS)
        if page.more or found.missing:
            leads[bound] = write_cursor(page.cursor)
        totals = [document["total"] for document in documents.values()]
        first = None not in totals
        exact = not found.missing and all(document["total_exact"] for document in documents.values())
        return {
            field: _with_databases(page.entries),
            **leads,
            "total": sum(totals) if first else None,
            "total_exact": exact if first else None,
        }

    return await found.merged(merged)


async def list_incidents(databases: Databases, pairs: Pairs, field: str) -> Answer:
    """Return the newest incidents of all."""
    asked = Asked.read(pairs)
    found = await ask_all(databases, lambda _: pairs)

    def merged(documents: Mapping[str, Document]) -> Document:
        page = merge(
            {name: Page(document[field], more=False) for name, document in documents.items()},
            asked.most,
            time=_time_of("last"),
            position=lambda _: 0,
            newest_first=True,
        )
        whole = not page.more and not found.missing
        return {
            "now": min((document["now"] for document in documents.values()), key=datetime.fromisoformat),
            "complete": whole and all(document["complete"] for document in documents.values()),
            field: _with_databases(page.entries),
        }

    return await found.merged(merged)


async def list_names(databases: Databases, pairs: Pairs, field: str) -> Answer:
    """Return a page of fences or locks, by name, which is the cursor of all. A name is listed in its owner only.

    A database keeps the fences of names that it has given away.
    """
    asked = Asked.read(pairs)
    found = await ask_all(databases, lambda _: pairs)

    def merged(documents: Mapping[str, Document]) -> Document:
        # A database with more has listed all of its names up to this one.
        ends = [document["after"] for document in documents.values() if document["after"]]
        listed = [
            _with_databases(
                (name, one)
                for one in document[field]
                if databases.owner(one["resource"]) == name and (not ends or one["resource"] <= min(ends))
            )
            for name, document in documents.items()
        ]
        page = list(islice(merge_by_name(*listed, key=lambda one: str(one["resource"])), asked.most))
        cut = sum(map(len, listed)) > asked.most
        return {field: page, "after": page[-1]["resource"] if cut else min(ends, default=None)}

    return await found.merged(merged)


async def list_webhooks(databases: Databases, pairs: Pairs, field: str) -> Answer:
    """Return the progress of each webhook in each database."""
    found = await ask_all(databases, lambda _: pairs)
    return await found.merged(
        lambda documents: {
            field: _with_databases((name, one) for name, document in documents.items() for one in document[field])
        }
    )


async def list_heads(databases: Databases, pairs: Pairs, field: str) -> Answer:
    """Return the end of each record."""
    found = await ask_all(databases, lambda _: pairs)
    return await found.merged(lambda documents: {field: _with_databases(documents.items())})


_READING: set[asyncio.Future[Any]] = set()
"""Requests to databases that may outlast the answer of all."""


def _over(task: asyncio.Future[Any]) -> None:
    """Forget a request to a database. Another one's answer may have made its refusal irrelevant."""
    _READING.discard(task)
    if not task.cancelled():
        task.exception()


async def find(databases: Databases, pairs: Pairs, path: str) -> tuple[str, Answer]:
    """Return the database that has the entry at a path, and its answer.

    Raises ``Refused`` if the databases refuse the request. If none has the entry, this takes an answer of each of
    them. Raises ``Unavailable`` without it. Slower databases are not cancelled, because that would end their sessions.
    They have ``WAIT`` seconds.
    """

    async def asked(name: str) -> tuple[str, Answer | None]:
        try:
            answer = await databases.ask(name, pairs, path)
        except Unavailable:
            return name, None
        return name, answer if answer.status < 500 else None

    tasks = [asyncio.ensure_future(asked(name)) for name in databases.names]
    absent: Answer | None = None
    missing: list[str] = []
    for task in tasks:
        _READING.add(task)
        task.add_done_callback(_over)
    for answered in asyncio.as_completed(tasks):
        name, answer = await answered
        if answer is None:
            missing.append(name)
        elif answer.status == 404:
            absent = answer
        else:
            return name, answer
    if missing or absent is None:
        raise Unavailable(
            f"The databases that have answered have no such entry. Not answered: {', '.join(sorted(missing))}."
        )
    raise Refused(absent, NotFound("No database has it."))


async def read(databases: Databases, pairs: Pairs, path: str) -> Answer:
    """Return one entry, with its database. Raises what ``find`` raises."""
    name, answer = await find(databases, pairs, path)
    return answer.with_body(orjson.dumps({"database": name, **orjson.loads(answer.body)}))


def _time_of(field: str) -> Callable[[Document], datetime]:
    return lambda entry: datetime.fromisoformat(entry[field])


def _with_databases(entries: Iterable[tuple[str, Document]]) -> list[Document]:
    return [{"database": name, **entry} for name, entry in entries]
