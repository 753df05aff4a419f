"""The fast path: plain requests of a form seen before, each one statement that shares its trip with others.

It only ever confirms: a write goes through if its fence already carries exactly its token. Whatever else is the case,
and whatever is wrong with a request, is found out by sending it the whole way, with nothing written.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gateway.admission import Admission
from gateway.db.database import Database, asks_again
from gateway.errors import GatewayError, Unavailable
from gateway.fencing.record import Attempt
from gateway.fencing.refusal import refusal
from gateway.fencing.token import Token
from gateway.http.body import LARGE
from gateway.http.head import Head
from gateway.observe.events import Observe, StepReached, WriteAccepted
from gateway.record.audit import Audit
from gateway.tables.dialect import body, response
from gateway.tables.dialect.request import Request
from gateway.tables.dialect.response import Accepted, Response, Row, Written, check_put
from gateway.tables.execute import recipes
from gateway.tables.execute.batch import Batches
from gateway.tables.execute.planning import Sender
from gateway.tables.execute.recipes import Form, Forms, Plain, ReadRecipe, WriteRecipe
from gateway.tables.execute.storms import Storms
from gateway.tables.schema_cache import Known, KnownTables
from gateway.tables.sql.expressions import Statement

FAST_BEFORE = StepReached("tables.fast.before")
FAST_AFTER = StepReached("tables.fast.after")

_MOST_FORMS = 4096
_MOST_BODIES = 64
_MOST_OVERTAKEN = 4096

Recipe = TypeVar("Recipe", WriteRecipe, ReadRecipe)


class InVain(Exception):
    """A write was sent, and nothing is written: its fence does not carry its token, or the database wants a retry."""


@dataclass(frozen=True, slots=True)
class _Learnt(Generic[Recipe]):
    """A recipe, and what was known of its table when it was learnt."""

    recipe: Recipe
    known: Known
    accepted: WriteAccepted | None = None
    """What there is to say once a write has been carried out."""


@dataclass(slots=True)
class _Writes:
    """The recipes of one form of writes, by the columns of the body. ``columns`` are those the query names, if any."""

    columns: tuple[str, ...] | None
    by_body: dict[tuple[str, ...], _Learnt[WriteRecipe]] = field(default_factory=dict)


class FastPath:
    """Answers plain requests, and learns from those that went the whole way."""

    def __init__(
        self, database: Database, tables: KnownTables, admission: Admission, audit: Audit, observe: Observe
    ) -> None:
        self._tables, self._admission, self._observe = tables, admission, observe
        self._write_batches = Batches(database.fetchrow_write, database.fetchmany_write, observe=observe)
        self._read_batches = Batches(database.fetchrow, database.fetchmany, writes=False, observe=observe)
        self._storms = Storms(audit, self._write_batches.busy)
        # Fences seen to be higher than a token that was shown. They never go down: whoever comes with a lower one
        # again need not be tried. What is answered is what the database says when it is put on record.
        self._overtaken: dict[str, Token] = {}
        self._forms = Forms()
        self._writes: dict[Form, _Writes] = {}
        self._reads: dict[Form, _Learnt[ReadRecipe]] = {}

    def plain(self, head: Head) -> Plain | None:
        """Return the request as a form and its values; None if it is not plain."""
        return self._forms.read(head)

    def knows(self, plain: Plain) -> bool:
        """Whether a request of this form has been seen."""
        return plain.form in self._writes or plain.form in self._reads

    def confirms(self, resource: str, token: Token) -> bool:
        """Return whether this token may write without being looked at again, where the fence carries it."""
        return not self._admission.asks_about(resource, token)

    async def write(self, plain: Plain, content: bytes, sender: Callable[[], Sender]) -> Response | None:
        """The answer to a write that has taken effect; None where it was not sent, for want of a recipe.

        Raises ``InVain`` where it was sent and the whole way tells what to do, and what ``send`` raises.
        """
        writes = self._writes[plain.form]
        if len(content) > LARGE:
            return None
        try:
            payload = None if plain.form.method == "DELETE" else body.parse(content, writes.columns)
            shown = plain.shown()
        except GatewayError:
            return None
        learnt = writes.by_body.get(payload.columns if payload else ())
        if learnt is None or shown.token is None or not self._tables.is_current(learnt.known):
            return None
        if payload is not None and len(payload.rows) != 1:
            return None
        recipe = learnt.recipe
        resource = recipe.resource(plain.values, payload)
        if resource is None or shown.resource not in (None, resource) or not self.confirms(resource, shown.token):
            return None
        row = await self.send(
            recipe.statement,
            recipe.arguments(resource, shown, plain.values, payload),
            resource,
            shown.token,
            len(content) + len(resource),
            lambda: sender().attempt(shown.token, shown.holder, content, learnt.known.name),
        )
        if row is None:
            raise InVain
        written = Written.from_row(row)
        check_put(recipe.request, written.touched)
        assert learnt.accepted is not None
        self._observe(learnt.accepted)
        accepted = Accepted(shown.token, (resource,))
        return response.write(recipe.request, learnt.known.table, written, accepted, plain.form.path)

    async def read(self, plain: Plain, query_string: bytes) -> Response | None:
        """The answer to a read; None where it must go the whole way after all."""
        learnt = self._reads[plain.form]
        if not self._tables.is_current(learnt.known):
            return None
        recipe = learnt.recipe
        arguments = recipe.arguments(plain.values)
        row = await self._read_batches.send(recipe.statement, arguments, None, len(query_string))
        return response.read(recipe.request, row, plain.form.path, query_string)

    async def send(
        self,
        statement: Statement,
        arguments: list[object],
        resource: str,
        token: Token,
        size: int,
        attempt: Callable[[], Attempt],
    ) -> Row | None:
        """The row of one fenced statement; None where the fence does not carry the token, or a retry is wanted.

        ``size``: bytes of its values; ``attempt``: the write as it goes on record if it must.

        Raises ``FenceRefusal`` (recorded) where the fence carries a higher one, what the database says against the
        write, ``Unavailable`` or ``OutcomeUnknown``.
        """
        known = self._overtaken.get(resource)
        if known is None or token >= known:
            self._observe(FAST_BEFORE)
            try:
                row = await self._write_batches.send(statement, arguments, resource, size)
            except Unavailable as error:
                if asks_again(error):
                    return None
                raise
            self._observe(FAST_AFTER)
            if row["held"]:
                return row
            if not row["overtaken"]:
                return None
        await self._refuse(resource, attempt())
        return None

    async def _refuse(self, resource: str, attempt: Attempt) -> None:
        rejection = await self._storms.record(resource, attempt)
        if rejection is None:
            return
        assert rejection.fence is not None
        if len(self._overtaken) >= _MOST_OVERTAKEN:
            self._overtaken.clear()
        self._overtaken[resource] = rejection.fence.token
        raise refusal(rejection)

    def learn_write(
        self,
        plain: Plain,
        wanted: Request,
        columns: tuple[str, ...],
        known: Known,
        statement: Statement,
        values: Mapping[str, object],
    ) -> None:
        """Keep what this write came to, which is about to take the fast path."""
        recipe = recipes.write_recipe(plain, wanted, columns, known.naming(), statement, values)
        if recipe is None:
            return
        if len(self._writes) >= _MOST_FORMS:
            self._writes.clear()
        writes = self._writes.setdefault(plain.form, _Writes(wanted.query.columns))
        if len(writes.by_body) >= _MOST_BODIES:
            writes.by_body.clear()
        writes.by_body[columns] = _Learnt(recipe, known, WriteAccepted("tables", known.name, "recipe"))

    def learn_read(
        self, plain: Plain, wanted: Request, known: Known, statement: Statement, values: Mapping[str, object]
    ) -> None:
        """Keep what this read came to."""
        recipe = recipes.read_recipe(plain, wanted, known.table, statement, values)
        if recipe is None:
            return
        if len(self._reads) >= _MOST_FORMS:
            self._reads.clear()
        self._reads[plain.form] = _Learnt(recipe, known)
