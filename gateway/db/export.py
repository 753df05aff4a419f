"""Exports the record as text of any length: PostgreSQL makes the text, one day at a time, and none of it is kept here.

Each day is a statement of its own. So an export of a year holds up neither the dropping of old days nor the cleanup of
rows. It needs no sort of the whole.
"""

import re
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import date
from enum import StrEnum
from typing import Any, TypeAlias

from gateway.db import record
from gateway.db.database import Database
from gateway.db.pool import Session, load, translated
from gateway.db.search import Values, conditions, list_days
from gateway.errors import Unavailable
from gateway.fencing.record import Filters

Write: TypeAlias = Callable[[bytes], Coroutine[Any, Any, None]]

_SQL = load("export")
# ASCII codes of what spreadsheets take for the beginning of a formula; then the wide forms of the same signs.
_FORMULA = "9, 13, 43, 45, 61, 64, 65291, 65293, 65309, 65312"
_TEXT = re.compile(r"\{text:(\w+)\}")
_FIELDS = """
position,id,at,kind,plane,rule,resource,reason,enforced,token,holder,caller,method,target,client,request_id,
payload_size,payload_sha256,fence,fence_holder,fence_caller,fence_raised_at,details,hash
"""
HEADER = ("".join(_FIELDS.split()) + "\n").encode()
"""The first line of a CSV export."""


class ExportFormat(StrEnum):
    CSV = "csv"
    NDJSON = "ndjson"


# Delimiter and quote. Lines of JSON have no control characters in them, so that quoting has nothing to do.
_SIGNS = {ExportFormat.CSV: (",", '"'), ExportFormat.NDJSON: ("\x02", "\x01")}


class Export:
    """One export, on a session of its own."""

    def __init__(self, session: Session, filters: Filters, days: list[date], bounds: tuple[int, int]) -> None:
        self._session, self._filters, self._days, self._bounds = session, filters, days, bounds

    async def write(self, form: ExportFormat, write: Write) -> None:
        """Hand it to ``write`` piece by piece, the oldest first. Raises ``Unavailable``, and what ``write`` raises."""
        if form is ExportFormat.CSV:
            await write(HEADER)
        delimiter, quote = _SIGNS[form]
        for day in self._days:
            sql, values = self._of(form, day)
            with translated(Unavailable):
                await self._session.copy_from_query(
                    sql, *values, output=write, format="csv", delimiter=delimiter, quote=quote
                )

    def _of(self, form: ExportFormat, day: date) -> tuple[str, list[object]]:
        values = Values()
        sql = _TEXT.sub(rf"CASE WHEN ascii(\1) IN ({_FORMULA}) THEN '''' ELSE '' END || \1", _SQL[form])
        after, until = self._bounds
        wanted = [
            *conditions(self._filters, values),
            f"position > {values.add(after)}",
            f"position <= {values.add(until)}",
        ]
        texts = {"{day}": values.add(day), "{conditions}": "".join(f" AND {one}" for one in wanted)}
        for name, text in texts.items():
            sql = sql.replace(name, text)
        return sql, values.all


@asynccontextmanager
async def open_export(database: Database, filters: Filters, after: int = 0) -> AsyncIterator[Export]:
    """Yield the entries on record now, after a position. Raise ``Unavailable`` if they cannot be read."""
    until = await record.seal(database)
    days = await list_days(database, filters, until + 1, after)
    async with database.apart() as session:
        yield Export(session, filters, days, (after, until))
