"""One write in a transaction that has claimed: its condition, its statement, the check of the rows it has touched."""

from dataclasses import dataclass, replace

from gateway.errors import ConditionUnsupported
from gateway.fencing.rules import Fence, Mode
from gateway.store import settings
from gateway.store.database import Transaction
from gateway.tables.failures import mismatch
from gateway.tables.grammar import not_implemented
from gateway.tables.plan import table_resource
from gateway.tables.planning import Write
from gateway.tables.request import Request
from gateway.tables.response import Row, Written, check_affected, check_put, check_single
from gateway.tables.shape import lower_filters, lower_write
from gateway.tables.unchanged import unchanged
from gateway.tables.versions import row_changed

_NOTHING: Row = {"touched": 0, "inserted": 0, "body": None, "location": None, "etag": None, "strays": 0}


@dataclass(frozen=True, slots=True)
class Note:
    """What a write in observe mode would have been refused for."""

    resource: str
    reason: str
    fence: Fence | None = None


def written_columns(write: Write) -> tuple[tuple[str, ...], bool]:
    """The columns a statement writes, and whether it inserts one row of nothing but defaults."""
    payload = write.payload
    if payload is None or not payload.rows:
        return (), False
    if payload.columns or write.request.method == "PATCH":
        return payload.columns, False
    if len(payload.rows) > 1 or write.request.method == "PUT":
        raise not_implemented("A body of several rows without any column")
    return (), True


async def apply(transaction: Transaction, write: Write) -> tuple[Written, list[Note]]:
    """Carry it out. Whatever is raised has to undo the transaction: ``RowChanged``, ``ResourceMismatch``,
    ``DialectError`` or ``SqlError``.
    """
    if write.call is not None:
        if write.request.preferences.timezone is not None:
            await settings.set_zone(transaction, write.request.preferences.timezone)
        return await write.call.carry_out(transaction), []
    # Before the time zone is the caller's: in another one the same row has another text, and another ETag.
    current = await _locked_version(transaction, write) if write.request.preconditions else None
    creates = write.request.method == "PUT" and bool(write.request.preconditions) and current is None
    if write.request.preferences.timezone is not None:
        await settings.set_zone(transaction, write.request.preferences.timezone)
    row = await _row(transaction, write, creates=creates)
    written = Written.from_row(row)
    if creates and not written.touched:
        await _check_absent(transaction, write)
    _check_touched(write.request, written.touched)
    if row is _NOTHING:
        written = replace(written, etag=current)
    if write.claimed is None or not row["strays"]:
        return written, []
    failure = mismatch(row["stray"])
    if write.known.rule.mode is Mode.ENFORCE:
        raise failure
    return written, [Note(row["stray"] or table_resource(write.known.table), failure.code)]


async def _locked_version(transaction: Transaction, write: Write) -> str | None:
    """The ETag of the one row, which stays as it is from here on; None where there is none.

    Raises ``RowChanged`` where it does not meet the conditions.
    """
    current = await _version(transaction, write)
    if not write.request.preconditions.met_by(current):
        raise row_changed(current)
    return current


async def _version(transaction: Transaction, write: Write) -> str | None:
    filters, values = lower_filters(write.request.query.filters)
    statement = write.known.statements.version_of(filters)
    rows = await transaction.fetch(statement.text, *statement.arrange(values))
    if len(rows) > 1:
        raise ConditionUnsupported("Tables that inherit from this one have more rows with this key.")
    return rows[0]["etag"] if rows else None


async def _check_absent(transaction: Transaction, write: Write) -> None:
    """``RowChanged``, where a row that was to be created has been created by somebody else at the same moment."""
    current = await _version(transaction, write)
    if current is not None:
        raise row_changed(current)


async def _row(transaction: Transaction, write: Write, *, creates: bool) -> Row:
    """What the statement says it has done. ``creates``: a row that has come to be there is left as it is."""
    known = write.known
    columns, default_row = written_columns(write)
    if write.request.method != "DELETE" and not columns and not default_row:
        # Nothing to write, but what it claims must have been worked out from the table as it is.
        await transaction.execute(f"SELECT {unchanged(known.table)}")
        return _NOTHING
    guarded = write.guarded and known.rule.mode is Mode.ENFORCE
    shape, values = lower_write(
        write.request, known.table, columns, default_row=default_row, fenced=False, guarded=guarded
    )
    if creates:
        shape = shape._replace(conflict=("ignore", known.table.primary_key))
    values["claimed"] = list(write.claimed or ())
    values["payload"] = write.payload.text if write.payload else None
    statement = known.statements.write(shape)
    row = await transaction.fetchrow(statement.text, *statement.arrange(values))
    assert row is not None
    return row


def _check_touched(request: Request, touched: int) -> None:
    check_put(request, touched)
    if request.singular:
        check_single(touched)
    if request.method in ("PATCH", "DELETE"):
        check_affected(request, touched)
