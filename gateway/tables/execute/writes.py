"""Carries out one planned write under its fence: the fast path in one statement, or else the slow one.

The fast path only ever confirms: it writes if the fence already carries exactly the presented token, and whatever
else is the case is found out in a transaction.
"""

from gateway.db.idempotency import Key
from gateway.fencing.rules import Equal, Mode
from gateway.observe.events import Observe, WriteAccepted
from gateway.tables.dialect import response
from gateway.tables.dialect.response import Response, Written, check_put
from gateway.tables.execute.fast_path import FastPath
from gateway.tables.execute.fenced_write import written_columns
from gateway.tables.execute.planning import Write
from gateway.tables.execute.transaction import Order, SlowPath, accepted
from gateway.tables.sql.shape import lower_write


class Writer:
    """Executes writes."""

    def __init__(self, fast_path: FastPath, slow_path: SlowPath, observe: Observe) -> None:
        self._fast_path, self._slow_path, self._observe = fast_path, slow_path, observe

    async def execute(self, write: Write, key: Key | None = None) -> Response:
        """Write, durably; the answer. With a ``key`` it is kept, and comes again with the next request of this key.

        Raises ``FenceRefusal`` (recorded), ``ResourceMismatch``, ``RowChanged``, ``SqlError`` or ``DialectError``.
        After these nothing is written; after ``Unavailable`` neither; ``OutcomeUnknown`` says what it says.
        """
        columns, _ = written_columns(write)
        if key is None and _may_be_fast(write, columns):
            answer = await self._fast(write, columns)
            if answer is not None:
                return answer
        return await self._slow_path.carry_out(Order([write], key))

    async def _fast(self, write: Write, columns: tuple[str, ...]) -> Response | None:
        """One autocommitted statement. None: the fence does not carry this token, the database wants a retry, or the
        policy of the resource wants to look at the token.
        """
        assert write.tokens is not None
        assert write.claimed is not None
        known, resource = write.known, write.claimed[0]
        token = write.tokens.of(resource)
        if not self._fast_path.confirms(resource, token):
            return None
        shape, values = lower_write(
            write.request, known.table, columns, default_row=False, fenced=True, guarded=write.guarded
        )
        values["resource"], values["claimed"] = resource, write.claimed
        values["epoch"], values["value"], values["holder"] = token.epoch, token.value, write.tokens.holder
        values["payload"] = write.payload.text if write.payload else None
        statement = known.statements.write(shape)
        if write.plain is not None:
            self._fast_path.learn_write(write.plain, write.request, columns, known, statement, values)
        row = await self._fast_path.send(
            statement,
            statement.arrange(values),
            resource,
            token,
            len(write.body) + len(write.sender.query),
            lambda: write.attempts()(resource),
        )
        if row is None:
            return None
        written = Written.from_row(row)
        check_put(write.request, written.touched)
        self._observe(WriteAccepted("tables", known.name, "statement"))
        return response.write(write.request, known.table, written, accepted(write), write.sender.path)


def _may_be_fast(write: Write, columns: tuple[str, ...]) -> bool:
    """Whether one statement can do it all: one resource, nothing to undo after the statement has committed."""
    request, rule = write.request, write.known.rule
    return (
        not write.tried
        and rule.mode is Mode.ENFORCE
        and rule.equal is Equal.ACCEPT
        and write.claimed is not None
        and len(write.claimed) == 1
        and not request.singular
        and not request.preferences.need_a_transaction
        and not request.preconditions
        and (bool(columns) or request.method == "DELETE")
        # Such code may change the settings in which the next write, of this trip or of this session, makes its names.
        # And triggers for each statement fire also where the statement finds its fence overtaken.
        and not write.known.table.runs_code_when_written
    )
