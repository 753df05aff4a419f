"""A journal in a second PostgreSQL, as far as it needs none. The other modules have the rest."""

import traceback

import pytest

from gateway.db.database import Database
from gateway.errors import JournalUnusable
from gateway.journal.rows import RowStore


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://role:hunter2/secret@server/journal",
        "postgresql://role:hunter2-secret@one,two:port/journal",
        "postgresql://role:hunter2-secret@/journal?host=one,two&port=1,2,3",
    ],
)
async def test_an_address_that_cannot_be_read_is_told_without_its_password(dsn: str) -> None:
    database = Database(dsn, connect_timeout=1.0)
    with pytest.raises(JournalUnusable, match=r"journal\.dsn is not the address of a database") as refused:
        await RowStore(database).read("marker")
    await database.close()
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))
